#include "vivace/exec/stream.h"

#include <algorithm>
#include <cstdint>

namespace vivace::exec {

Status wrong_time(const char* backend, const char* call, const char* why) {
  return Status(Code::kFailedPrecondition, strf("%s stream: %s: %s", backend, call, why));
}

Status check_copy(const char* backend, const void* to, const void* from, size_t bytes) {
  const auto t = reinterpret_cast<uintptr_t>(to), f = reinterpret_cast<uintptr_t>(from);
  if (bytes != 0 && (to == nullptr || from == nullptr))
    return Status(Code::kInvalidArgument,
                  strf("%s stream: copy of %zu bytes from %p to %p: null address", backend, bytes, from, to));
  if (bytes > UINTPTR_MAX - std::max(t, f))
    return Status(Code::kInvalidArgument,
                  strf("%s stream: copy of %zu bytes from %p to %p: no memory has so many", backend, bytes, from, to));
  if (t < f + bytes && f < t + bytes)
    return Status(Code::kAliasError,
                  strf("%s stream: copy of %zu bytes from %p to %p: the ranges overlap", backend, bytes, from, to));
  return {};
}

}  // namespace vivace::exec
