// Buffer: a named region of memory. Owns its lifetime and has no verbs: what is written into it,
// and when, is decided elsewhere.
#pragma once
#include <string>
#include <utility>

#include "vivace/base/tensor.h"

namespace vivace::exec {

class Buffer {
 public:
  /// Gives the region back. Called once, from the destructor; `context` is the allocator's own.
  using Deleter = void (*)(void* data, size_t bytes, void* context);

  Buffer() = default;
  /// Takes over `data`. Without a deleter the region belongs to the caller and must outlive this.
  Buffer(std::string name, void* data, size_t bytes, Place place, Deleter deleter = nullptr, void* context = nullptr)
      : name_(std::move(name)), data_(data), bytes_(bytes), place_(place), deleter_(deleter), context_(context) {}
  ~Buffer() { release(); }
  Buffer(Buffer&& o) noexcept { *this = std::move(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    if (this == &o) return *this;
    release();
    name_ = std::move(o.name_);
    data_ = std::exchange(o.data_, nullptr);
    bytes_ = std::exchange(o.bytes_, 0);
    place_ = o.place_;
    deleter_ = std::exchange(o.deleter_, nullptr);
    context_ = std::exchange(o.context_, nullptr);
    return *this;
  }

  const std::string& name() const { return name_; }
  /// Stable for the life of the buffer, so that captured work may hold it.
  void* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Place place() const { return place_; }

 private:
  void release() {
    if (deleter_ != nullptr) deleter_(data_, bytes_, context_);
    deleter_ = nullptr;
  }

  std::string name_;
  void* data_ = nullptr;
  size_t bytes_ = 0;
  Place place_ = Place::host;
  Deleter deleter_ = nullptr;
  void* context_ = nullptr;
};

}  // namespace vivace::exec
