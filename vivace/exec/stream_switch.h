// StreamSwitch: two streams, one of them in use, and the order between what they are given.
#pragma once
#include <memory>

#include "vivace/base/check.h"
#include "vivace/exec/stream.h"

namespace vivace::exec {

/// For work that exists twice, captured for the whole device and for a part of it say, over the same memory. Whoever
/// uses it begins and ends a piece of work on one stream: graphs belong to the one that they were captured on. Not
/// thread-safe: as the streams, which outlive it.
class StreamSwitch {
 public:
  /// All three of one backend.
  StreamSwitch(Stream& first, Stream& second, std::unique_ptr<Event> order)
      : streams_{&first, &second}, order_(std::move(order)) {}
  Stream& stream() const { return *streams_[second_ ? 1 : 0]; }
  bool second() const { return second_; }
  /// What is put on the other stream from here on runs behind all that the one before was given. No host waits for it,
  /// nothing is allocated. Errors: FailedPrecondition within a capture, the streams' own; then it is as it was.
  Status use(bool second) {
    if (second == second_) return {};
    VV_TRY(stream().record(*order_));
    VV_TRY(streams_[second ? 1 : 0]->wait(*order_));
    second_ = second;
    return {};
  }

 private:
  Stream* const streams_[2];
  const std::unique_ptr<Event> order_;
  bool second_ = false;
};

}  // namespace vivace::exec
