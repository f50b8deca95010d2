// Tagged: handles that say of what kind they are, so that one in another's place is an error and no crash.
#pragma once
#include <atomic>
#include <cstdint>
#include <type_traits>

namespace vivace::capi {

enum class Kind : uint64_t {
  backend = 0x7676'6261'636b'0001,
  buffer,
  stream,
  event,
  graph,
  plan,
  model,
  policy,
  runner,
  tokenizer,
  speech,
  transcript,
  scheduler,
  tenant
};

struct AnyHandle {};

/// First in a handle. The tag goes when the handle is destroyed: a handle that is used afterwards is found as long as
/// its memory holds nothing else, which a caller must not rely on.
template <Kind kind>
class Tagged : public AnyHandle {
 public:
  static constexpr Kind kKind = kind;
  Tagged() = default;
  Tagged(const Tagged&) = delete;
  ~Tagged() { std::atomic_ref<uint64_t>(tag_).store(0, std::memory_order_release); }
  uint64_t tag() const { return tag_; }

 private:
  uint64_t tag_ = static_cast<uint64_t>(kind);
};

/// True of everything that is no handle.
template <class Pointer>
bool is_of_its_kind(Pointer handle) {
  using T = std::remove_cv_t<std::remove_pointer_t<Pointer>>;
  if constexpr (std::is_base_of_v<AnyHandle, T>) return handle->tag() == static_cast<uint64_t>(T::kKind);
  else return true;
}

/// vv_..._destroy(): NULL and what is of another kind are left alone.
template <class T>
void destroy(T* handle) {
  if (handle != nullptr && is_of_its_kind(handle)) delete handle;
}

/// For calls that have no status: whether they may look into a handle.
template <class T>
bool usable(const T* handle) {
  return handle != nullptr && is_of_its_kind(handle);
}

}  // namespace vivace::capi
