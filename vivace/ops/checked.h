// Checked mode: what ops trust of contents in memory (page numbers, lengths, slots, offsets) is read and held against
// its limits before a call is launched. Waits for the stream at each call: for tests and for finding a fault.
#pragma once
#include <vector>

#include "vivace/exec/stream.h"
#include "vivace/ops/call.h"

namespace vivace::ops {

/// Off at the start, unless VIVACE_CHECKED is set to anything but 0. Of the whole process; any thread.
void set_checked(bool on);
bool checked();

/// Contents of a call's i32 and f32 ports, wherever they lie.
class Contents {
 public:
  Contents(const Call& call, exec::Stream& stream) : call_(call), stream_(stream) {}
  /// All elements, outermost rows one after the other; empty if the port is absent.
  Result<std::vector<int32_t>> operator()(Name port) const;
  /// The same of an f32 port.
  Result<std::vector<float>> floats(Name port) const;
  /// Valid rows: what the port `rows` says, within [0, T]; T without it.
  Result<int64_t> rows() const;

 private:
  template <class T>
  Result<std::vector<T>> elements(Name port) const;

  const Call& call_;
  exec::Stream& stream_;
};

/// Holds the contents of a bound, checked call of an op with rules against them. Nothing in a capture, whose contents
/// come later. Errors: InvalidArgument says which entry of which port, what it is and what was wanted.
Status check_contents(const Call& call, exec::Stream& stream);

}  // namespace vivace::ops
