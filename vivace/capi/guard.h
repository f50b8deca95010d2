// How a C entry point answers: Status to vv_status, the text kept for vv_last_error().
#pragma once
#include <cxxabi.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <exception>
#include <new>
#include <string>

#include "vivace/base/check.h"
#include "vivace/capi/tagged.h"
#include "vivace/capi/vivace.h"

namespace vivace::capi {

/// Keeps the text for this thread and gives the code. OK costs a comparison.
vv_status answer(const char* call, const Status& status);
/// The Status that a callback's code stands for, with the text it left by vv_fail or a failed call.
Status from_callback(vv_status status);
/// What `fn` answers, or what it throws, whatever that is. The end of a thread (pthread_exit) goes on: it cannot be
/// held up.
template <class Fn>
Status contained(Fn&& fn) {
  try {
    return fn();
  } catch (const std::bad_alloc&) {
    return Status(Code::kOutOfMemory, "no host memory");
  } catch (const std::exception& e) {
    return Status(Code::kInternal, e.what());
  } catch (abi::__forced_unwind&) {
    throw;
  } catch (...) {
    return Status(Code::kInternal, "a callback threw something that is no std::exception");
  }
}

/// Forgets the text, so that from_callback() does not find an older one.
void clear_error();

/// A struct of the caller's that a call fills: what lies behind struct_size is 0 until then.
template <class T>
struct Filled {
  T* to;
  size_t least;  // the size of the first version; a smaller struct cannot be touched
};
template <class T>
void reset(Filled<T> out) {
  if (out.to == nullptr || out.to->struct_size < out.least) return;
  constexpr size_t kHead = sizeof(out.to->struct_size);
  std::memset(reinterpret_cast<char*>(out.to) + kHead, 0, std::min(out.to->struct_size, sizeof(T)) - kHead);
}
template <class T>
void reset(T* out) {
  if (out != nullptr) *out = T{};
}

/// Runs `fn` (returning Status) and answers; unless it ends well, what `out` points to is NULL or 0. The C ABI lets
/// nothing through: no allocation that fails in setup, and nothing that a callback throws.
template <class Fn, class... Out>
vv_status guard(const char* call, Fn&& fn, Out... out) {
  (reset(out), ...);
  Status status = contained(fn);
  if (status.ok()) [[likely]] return VV_OK;
  (reset(out), ...);
  return answer(call, status);
}

/// Reads a size-probed struct: what the caller's version lacks keeps the defaults of T.
/// `least`: the size of the first version.
template <class T>
Status read_struct(const T* from, size_t least, T* to) {
  if (from == nullptr) return Status(Code::kInvalidArgument, "the struct is NULL");
  if (from->struct_size < least)
    return Status(
        Code::kInvalidArgument,
        strf("struct_size is %zu, at least %zu is needed: set it to the struct's sizeof", from->struct_size, least));
  constexpr size_t kMostStruct = 1 << 16;  // of any version there may ever be
  if (from->struct_size > kMostStruct)
    return Status(
        Code::kInvalidArgument,
        strf("struct_size is %zu, no version has so many bytes: set it to the struct's sizeof", from->struct_size));
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
inline Status no_handle(const char* what) {
  return Status(Code::kInvalidArgument,
                std::string(what) + ": this is a handle of another kind, or one that was destroyed");
}

/// The caller's bytes: no more than an object may have.
inline Status check_bytes(const char* what, size_t bytes) {
  return bytes <= PTRDIFF_MAX ? Status()
                              : Status(Code::kInvalidArgument, strf("%s is %zu, no memory has so many", what, bytes));
}

}  // namespace vivace::capi

/// Returns InvalidArgument from the enclosing lambda if `pointer` is NULL, or a handle that is not of its kind.
#define VV_NOT_NULL(pointer)                                             \
  if ((pointer) == nullptr) return ::vivace::capi::null(#pointer);       \
  if (!::vivace::capi::is_of_its_kind(pointer)) return ::vivace::capi::no_handle(#pointer)
