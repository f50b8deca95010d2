// The CUDA backend's gate: memory operations of streams, no kernel and no SM is held.
#pragma once
#include <memory>

#include "vivace/device/stream.h"
#include "vivace/device/waits.h"
#include "vivace/exec/gate.h"

namespace vivace::exec {

/// Words of streams lie in device memory, the host's in page-locked memory. A pass is one memory operation that waits
/// for all of its words, which captures record as one node; the kernel behind it starts when it is through, so that
/// nothing of it takes part of an SM before.
class CudaGate final : public Gate {
 public:
  /// Errors: Unsupported where the driver has no stream memory operations; InvalidArgument.
  static Result<std::unique_ptr<CudaGate>> create(const device::Device& device, int stream_words, int host_words);
  ~CudaGate() override;

  Status set(int word, bool shut) override;
  Status open_all() override;
  Result<bool> shut(int word) override;

  /// Queues a wait until every word of `mask` is 0. No check, no allocation.
  Status queue_pass(cu::Stream stream, uint32_t mask) const;
  Status queue_set(cu::Stream stream, int word, bool shut) const;
  /// Writes a word that nobody reads: work that a stream can only do when it gets its turn.
  Status queue_nothing(cu::Stream stream) const;
  const device::Device& device() const { return device_; }

 private:
  CudaGate(const device::Device& device, int stream_words, int host_words)
      : Gate(stream_words, host_words), device_(device) {}
  cu::DevicePtr address(int word) const;

  const device::GatesAlive alive_;  // goes last
  const device::Device& device_;
  cu::DevicePtr stream_page_ = 0;
  device::PinnedBuffer host_page_;
  device::Stream host_side_;  // of open_all() and shut(): no work is ever queued behind a gate here
};

}  // namespace vivace::exec
