// The ports that ops with a state along tokens share, and their rules.
#pragma once
#include "vivace/kernels/linear/sequences.h"
#include "vivace/ops/call.h"

namespace vivace::ops {

constexpr Port offsets_port() {
  return opt_in("offsets", "E", "i32",
                "first token of each sequence, and the end of the last; absent: one sequence of all tokens");
}
constexpr Port state_slot_port() {
  return opt_in("slot", "N", "i32",
                "row of state of each sequence; absent: n; outside [0, S): begins at zero, leaves nothing");
}
constexpr Port fresh_port() {
  return opt_in("fresh", "N", "i32", "nonzero: the sequence begins with a state of zeros, whatever is there");
}

/// Two sequences of one call must not share a row of state: contents, which nobody checks here.
inline Status bind_sequences(const Call& c, kernels::Sequences* s) {
  int64_t N = 1;
  if (c["offsets"].present()) {
    N = c["offsets"].shape.dim[0] - 1;
    if (N < 0) return c.error(Code::kInvalidShape, "port offsets has N + 1 entries, got none");
  }
  for (const char* port : {"slot", "fresh"})
    if (c[port].present() && c[port].shape.dim[0] != N)
      return c.error(Code::kInvalidShape, strf("port %s has an entry a sequence: wanted %ld, got %ld", port,
                                               static_cast<long>(N), static_cast<long>(c[port].shape.dim[0])));
  if (N > INT32_MAX || c.dim("S") > INT32_MAX || c.dim("T") > INT32_MAX)
    return c.error(Code::kInvalidShape, "N, S or T is above 2^31 - 1");
  if (!c["slot"].present() && N > c.dim("S"))
    return c.error(Code::kInvalidShape, strf("port state has %ld rows for %ld sequences; more need port slot",
                                             static_cast<long>(c.dim("S")), static_cast<long>(N)));
  *s = {c.ptr<int32_t>("offsets"), c.ptr<int32_t>("slot"), c.ptr<int32_t>("fresh"), static_cast<int32_t>(N),
        static_cast<int32_t>(c.dim("S"))};
  return {};
}

}  // namespace vivace::ops
