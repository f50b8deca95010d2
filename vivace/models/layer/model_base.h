// ModelBase: what every loaded model has, whatever it answers: a checkpoint, a machine, its weights and one arena. A
// family adds its config, its weights and its graph.
#pragma once
#include <chrono>
#include <string>
#include <utility>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/engine/arena.h"
#include "vivace/engine/host_pool.h"
#include "vivace/engine/weights.h"

namespace vivace::models {

/// `Interface`: the engine's class that the family is behind; `Options`: how that is loaded.
///
/// Loading goes in this order: open(); options are checked against the machine; weights are queued for `uploader_`;
/// buffers are declared in `arena_`; check_fit(); both are committed; constants are filled in; each graph is recorded
/// once without rows, which sizes scratch memory and loads kernels, and then captured; close_load().
template <class Interface, class Options>
class ModelBase : public Interface {
 public:
  ModelBase(std::string family, engine::Checkpoint checkpoint, Options options)
      : source_(std::move(checkpoint)), options_(std::move(options)), family_(std::move(family)) {}
  const std::string& family() const final { return family_; }
  std::vector<engine::MemoryLine> memory() const override {
    std::vector<engine::MemoryLine> lines{{"weights", uploader_.bytes()}};
    for (engine::MemoryLine& line : arena_.lines()) lines.push_back(std::move(line));
    return lines;
  }
  Result<engine::Moved> sleep() final { return runtime_->sleep(); }
  Result<engine::Moved> wake() final { return runtime_->wake(); }
  engine::HostPool& host_pool() final { return *host_pool_; }

 protected:
  /// What is in flight holds addresses of the family's memory: its destructor begins with this.
  void drain() {
    if (runtime_ != nullptr) static_cast<void>(runtime_->stream().synchronize());
  }
  /// Opens the machine that the options name, with what a scheduler asks of its tenant. Errors: Runtime::open()'s.
  Status open() {
    loaded_at_ = std::chrono::steady_clock::now();
    if (options_.random_weights) source_.make_synthetic();
    double share = 0;
    bool urgent = false, whole_too = false;
    if constexpr (requires(Options& o) { o.partition; }) share = options_.partition;
    if constexpr (requires(Options& o) { o.urgent; }) urgent = options_.urgent != nullptr;
    if constexpr (requires(Options& o) { o.switches; }) whole_too = options_.switches;
    VV_ASSIGN(runtime_, engine::Runtime::open(options_.device, options_.threads, share, urgent, options_.most_bytes,
                                              whole_too));
    runtime_->yield_to(options_.gates.urgent_runs);
    host_pool_ = engine::HostPool::make(
        runtime_->place() == Place::device
            ? [this](size_t bytes) { return runtime_->reserve_shared("host pool", bytes); }
            : engine::HostPool::Lock(),
        engine::HostPool::share_of_host());
    return {};
  }
  /// Before anything is copied: the whole need against what there is. `what`: "model" or "policy"; `advice`: what
  /// makes it need less. Errors: OutOfMemory.
  Status check_fit(const char* what, int64_t weights, const std::string& advice) {
    VV_ASSIGN(const int64_t free, runtime_->free_bytes());
    const int64_t need = weights + arena_.bytes();
    if (runtime_->place() == Place::host || need <= free) return {};
    return Status(Code::kOutOfMemory,
                  strf("the %s needs %ld bytes (weights %ld, arena %ld), %s has %ld free: %ld too many; %s", what,
                       static_cast<long>(need), static_cast<long>(weights), static_cast<long>(arena_.bytes()),
                       runtime_->name(), static_cast<long>(free), static_cast<long>(need - free), advice.c_str()));
  }
  /// Nothing more is uploaded. Errors: IoError if a file changed meanwhile.
  Status close_load() {
    runtime_->finish_uploads();
    return source_.check_files();
  }
  /// `f` with each stream that the machine has; the share's comes last and stays in use.
  template <class F>
  Status for_each_variant(F&& f) {
    for (int v = runtime_->variants() - 1; v >= 0; --v) {
      VV_TRY(runtime_->use_whole(v == 1));
      VV_TRY(f());
    }
    return {};
  }
  /// A part of loading ends here, for reports.
  void phase(const char* name) {
    const auto now = std::chrono::steady_clock::now();
    phases_.emplace_back(name, std::chrono::duration<double>(now - loaded_at_).count());
    loaded_at_ = now;
  }
  /// {"weights": 0.5120, ...}: seconds of each, as JSON.
  std::string phases_json() const {
    std::string all;
    for (const auto& [name, seconds] : phases_) all += strf("%s\"%s\": %.4f", all.empty() ? "" : ", ", name, seconds);
    return "{" + all + "}";
  }

  engine::WeightSource source_;
  Options options_;
  std::unique_ptr<engine::Runtime> runtime_;  // before everything that lives on it
  std::shared_ptr<engine::HostPool> host_pool_;
  engine::WeightUploader uploader_;
  engine::Arena arena_;
  std::string family_;

 private:
  std::chrono::steady_clock::time_point loaded_at_;
  std::vector<std::pair<const char*, double>> phases_;
};

/// A family's load function: makes it, has it load itself, and gives it as what the registry knows.
template <class Family, class Interface, class... Args>
Result<std::unique_ptr<Interface>> load_family(Args&&... args) {
  auto model = std::make_unique<Family>(std::forward<Args>(args)...);
  VV_TRY(model->load());
  return std::unique_ptr<Interface>(std::move(model));
}

}  // namespace vivace::models
