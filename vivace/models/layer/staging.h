// StagingBuffer: a piece of the arena that the host writes anew for each run, or reads after it, all in one copy.
#pragma once
#include <cstring>

#include "vivace/engine/arena.h"

namespace vivace::models {

/// Tensors declared one after the other; the host's copy of them lies in memory that both reach.
class StagingBuffer {
 public:
  /// `view` must outlive the arena's commit.
  void declare(engine::Arena& arena, const char* name, DType dtype, Shape shape, Tensor* view) {
    arena.declare(name, dtype, shape, view);
    if (first_ == nullptr) first_ = view;
    last_ = view;
  }
  /// After the arena's commit.
  Status open(engine::Runtime& runtime, const char* name) {
    begin_ = static_cast<char*>(first_->data);
    bytes_ = static_cast<size_t>(static_cast<char*>(last_->data) + last_->span_bytes() - begin_);
    bytes_ = (bytes_ + 15) / 16 * 16;
    auto buffer = runtime.reserve_shared(name, bytes_);
    if (!buffer.ok()) return std::move(buffer).status();
    staging_ = std::move(buffer).value();
    return {};
  }
  /// The host's copy of `t`, one of the declared tensors.
  template <class V>
  V* host(const Tensor& t) const {
    return reinterpret_cast<V*>(static_cast<char*>(staging_.data()) + (static_cast<char*>(t.data) - begin_));
  }
  Status copy_in(exec::Stream& stream) const { return stream.copy(begin_, staging_.data(), bytes_); }
  Status copy_out(exec::Stream& stream) const { return stream.copy(staging_.data(), begin_, bytes_); }
  size_t bytes() const { return bytes_; }

 private:
  Tensor *first_ = nullptr, *last_ = nullptr;
  char* begin_ = nullptr;
  size_t bytes_ = 0;
  exec::Buffer staging_;
};

}  // namespace vivace::models
