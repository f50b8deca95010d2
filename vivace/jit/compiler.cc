#include "vivace/jit/compiler.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <optional>
#include <thread>

#include "vivace/base/check.h"
#include "vivace/jit/helper.h"
#include "vivace/jit/nvrtc.h"

namespace vivace::jit {
namespace {

using Clock = std::chrono::steady_clock;

constexpr size_t kManySources = 16;  // from here on, helper processes are worth their start

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

}  // namespace

const char* name(Origin o) {
  switch (o) {
    case Origin::memory: return "memory";
    case Origin::pack: return "pack";
    case Origin::cache: return "cache";
    case Origin::compiled: return "compiled";
  }
  return "?";
}

Result<std::unique_ptr<Compiler>> Compiler::create(CompilerOptions options) {
  std::unique_ptr<Compiler> c(new Compiler(std::move(options)));
  for (const std::string& path : c->options_.packs) {
    VV_ASSIGN(Pack pack, Pack::open(path));
    c->packs_.push_back(std::move(pack));
  }
  if (c->options_.use_cache) {
    Result<std::string> folder =
        c->options_.cache_folder.empty() ? Cache::default_folder() : Result<std::string>(c->options_.cache_folder);
    Result<Cache> cache = folder.ok() ? Cache::open(*folder) : Result<Cache>(folder.status());
    if (cache.ok()) c->cache_ = std::move(cache).value();
    else warn_no_cache(folder.ok() ? *folder : "", cache.status());
    c->options_.use_cache = cache.ok();
  }
  return c;
}

struct Compiler::Lane {
  bool helped = false;  // by a process, started when first there is something to compile
  std::optional<Helper> helper;
};

Result<Binary> Compiler::build(const Source& source, Lane& lane) const {
  if (forbidden_)
    return Status(Code::kFailedPrecondition,
                  strf("%s for %s would have to be compiled, and the engine is ready and strict: add it to the "
                       "warm-up, or to a pack with `vivace pack`",
                       source.name.c_str(), name(source.arch)));
  if (lane.helped &&
      !lane.helper) {  // loading NVRTC takes longer than all kernels from the cache: not before one is missing
    if (Result<Helper> h = nvrtc().ok() ? Helper::start() : nvrtc().status(); h.ok())
      lane.helper.emplace(std::move(h).value());
    else lane.helped = false;
  }
  if (lane.helper) {
    Result<Binary> built = lane.helper->compile(source);
    if (built.ok() || built.status().code() != Code::kIoError) return built;
    lane.helper.reset(), lane.helped = false;  // it has ended: the rest is compiled here, to the same binaries
  }
  return compile(source);
}

Result<BinaryPtr> Compiler::find(const Source& source, const std::string& key, Lane& lane) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (const auto it = memory_.find(key); it != memory_.end()) return it->second;
  }
  const Clock::time_point start = Clock::now();
  Origin origin = Origin::pack;
  Result<Binary> found = Status(Code::kNotFound, "no pack");
  for (const Pack& pack : packs_)
    if (!found.ok() && found.status().code() == Code::kNotFound) found = pack.find(key);
  if (!found.ok()) {
    if (found.status().code() != Code::kNotFound) return found.status();  // a damaged pack is not worked around
    origin = Origin::cache;
    const auto build_it = [&] {
      origin = Origin::compiled;
      return build(source, lane);
    };
    found = options_.use_cache ? cache_.get_or_build(key, build_it) : build_it();
  }
  if (!found.ok()) return std::move(found).status();
  auto binary = std::make_shared<const Binary>(std::move(found).value());
  const std::lock_guard<std::mutex> lock(mutex_);
  timings_.push_back({source.name, key, origin, milliseconds_since(start)});
  return memory_.emplace(key, std::move(binary)).first->second;  // another thread's, if it was first
}

Result<BinaryPtr> Compiler::get(const Source& source) {
  VV_ASSIGN(std::vector<BinaryPtr> one, get(std::span(&source, 1)));
  return one[0];
}

Result<std::vector<BinaryPtr>> Compiler::get(std::span<const Source> sources) {
  std::vector<std::string> keys;
  std::unordered_map<std::string, size_t> first;  // key -> the source that stands for all equal ones
  std::vector<size_t> work;
  for (size_t i = 0; i < sources.size(); ++i) {
    keys.push_back(cache_key(sources[i]));
    if (first.emplace(keys[i], i).second) work.push_back(i);
  }

  // The longest first, or the last thread works alone: a kernel of attention takes thirty times as long as a cast.
  std::map<std::string, size_t> bytes;  // by text, which few sources have of their own
  for (const size_t i : work)
    if (const auto [at, fresh] = bytes.try_emplace(sources[i].text); fresh) at->second = included_bytes(sources[i]);
  std::sort(work.begin(), work.end(), [&](size_t a, size_t b) {
    return std::pair(bytes[sources[b].text], a) < std::pair(bytes[sources[a].text], b);
  });

  std::vector<BinaryPtr> out(sources.size());
  std::vector<Status> errors(sources.size());
  std::atomic<size_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex progress_mutex;
  size_t done = 0;
  const auto worker = [&](bool helped) {
    Lane lane{helped, {}};
    for (size_t w = next++; w < work.size() && !stop; w = next++) {
      const size_t i = work[w];
      Result<BinaryPtr> r = find(sources[i], keys[i], lane);
      if (r.ok()) {
        out[i] = std::move(r).value();
      } else {
        errors[i] = std::move(r).status();
        stop = true;
      }
      const std::lock_guard<std::mutex> lock(progress_mutex);
      ++done;
      if (options_.on_progress) options_.on_progress({done, work.size(), sources[i].name});
    }
  };
  const size_t cores = std::max(1u, std::thread::hardware_concurrency());
  const size_t jobs = std::min(work.size(), options_.jobs > 0 ? static_cast<size_t>(options_.jobs) : cores);
  std::vector<std::thread> threads;
  const bool helped = work.size() >= kManySources;
  for (size_t j = 1; j < jobs; ++j) threads.emplace_back(worker, helped);
  worker(false);
  for (std::thread& t : threads) t.join();

  for (Status& e : errors)
    if (!e.ok()) return std::move(e);
  for (size_t i = 0; i < sources.size(); ++i) out[i] = out[first[keys[i]]];
  return out;
}

std::vector<Timing> Compiler::timings() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return timings_;
}

}  // namespace vivace::jit
