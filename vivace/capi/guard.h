// How a C entry point answers: Status to vv_status, the text kept for vv_last_error().
#pragma once
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "vivace/base/check.h"
#include "vivace/capi/vivace.h"

namespace vivace::capi {

/// Keeps the text for this thread and gives the code. OK costs a comparison.
vv_status answer(const char* call, const Status& status);
/// The Status that a callback's code stands for, with the text it left by vv_fail or a failed call.
Status from_callback(vv_status status);
/// Forgets the text, so that from_callback() does not find an older one.
void clear_error();

/// Runs `fn` (returning Status) and answers. The C ABI lets nothing through: not even an allocation
/// that fails in setup.
template <class Fn>
vv_status guard(const char* call, Fn&& fn) {
  try {
    return answer(call, fn());
  } catch (const std::bad_alloc&) {
    return answer(call, Status(Code::kOutOfMemory, "no host memory"));
  } catch (const std::exception& e) {
    return answer(call, Status(Code::kInternal, e.what()));
  }
}

/// Reads a size-probed struct: what the caller's version lacks keeps the defaults of T.
/// `least`: the size of the first version.
template <class T>
Status read_struct(const T* from, size_t least, T* to) {
  if (from == nullptr) return Status(Code::kInvalidArgument, "the struct is NULL");
  if (from->struct_size < least)
    return Status(Code::kInvalidArgument, strf("struct_size is %zu, at least %zu is needed: set it to the struct's sizeof", from->struct_size, least));
  std::memcpy(static_cast<void*>(to), from, from->struct_size < sizeof(T) ? from->struct_size : sizeof(T));
  return {};
}

/// Writes one, and no more than the caller's version holds; struct_size stays the caller's.
template <class T>
Status write_struct(const T& from, size_t least, T* to) {
  T checked{};
  if (Status s = read_struct(static_cast<const T*>(to), least, &checked); !s.ok()) return s;
  const size_t size = to->struct_size;
  std::memcpy(static_cast<void*>(to), &from, size < sizeof(T) ? size : sizeof(T));
  to->struct_size = size;
  return {};
}

inline Status null(const char* what) { return Status(Code::kInvalidArgument, std::string(what) + " is NULL"); }

}  // namespace vivace::capi

/// Returns InvalidArgument from the enclosing lambda if `pointer` is NULL.
#define VV_NOT_NULL(pointer) \
  if ((pointer) == nullptr) return ::vivace::capi::null(#pointer)
