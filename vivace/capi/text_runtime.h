// TextRuntime: a TextModel seen as ports, as vivace/capi/model.h describes them.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/capi/model.h"
#include "vivace/engine/model.h"

namespace vivace::capi {

/// Not thread-safe. After construction only a failing call allocates.
class TextRuntime {
 public:
  /// Unsupported if `model` is no TextModel.
  static Result<std::unique_ptr<TextRuntime>> create(std::unique_ptr<engine::Model> model);

  engine::Model& model() { return *model_; }
  const std::string& family() const { return model_->family(); }
  const std::string& report() const { return report_; }
  int64_t bytes() const;
  engine::TextLimits limits() const { return text_.limits(); }

  static int port_count();
  Status describe(int port, vv_port_info* info) const;
  Result<int> find(const std::string& name) const;
  Status set_input(int port, const void* data, size_t bytes);
  Status swap(int port, void* data, size_t bytes);
  Status prepare();
  Status restart(int slot);
  Status step();
  Status get_output(int port, void* data, size_t capacity, size_t* bytes);

 private:
  /// What a port holds. Values of the caller's memory (SWAP) are not kept here.
  struct Held {
    std::unique_ptr<std::byte[]> memory;  // room for every entry
    int64_t entries = 0;                  // of the last call; 0: never set, or nothing came out
  };

  explicit TextRuntime(std::unique_ptr<engine::Model> model, engine::TextModel& text);
  int64_t most(int port) const;           // shape[0]
  size_t entry_bytes(int port) const;
  Status check_port(int port) const;
  Status check_entries(int port, size_t bytes, int64_t* entries) const;
  engine::Sampling sampling(int slot) const;
  Status gather_rows();
  template <class T>
  T* values(int port) const {
    return reinterpret_cast<T*>(held_[static_cast<size_t>(port)].memory.get());
  }

  static constexpr int kPorts = 16;
  std::unique_ptr<engine::Model> model_;
  engine::TextModel& text_;
  engine::TextLimits limits_;
  std::string report_;
  std::array<Held, kPorts> held_;
  std::vector<char> changed_;             // a slot: SETUP values were set and do not count yet
  void* logits_ = nullptr;                // of the caller's
  std::vector<engine::TokenRow> rows_;
  std::vector<engine::Sampled> sampled_;
};

}  // namespace vivace::capi
