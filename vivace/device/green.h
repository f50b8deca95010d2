// Partition: a fixed share of the chip's multiprocessors, as a green context.
#pragma once
#include <span>
#include <vector>

#include "vivace/device/stream.h"

namespace vivace::device {

/// Work in its streams runs on its multiprocessors only. Memory and kernels are the device's: a
/// pointer or a Kernel is valid in every partition. Graphs belong to the partition they were captured
/// in. Move-only; outlives its streams.
class Partition {
 public:
  Partition() = default;
  Partition(Partition&& o) noexcept
      : device_(o.device_), green_(std::exchange(o.green_, nullptr)), context_(o.context_), sm_count_(o.sm_count_) {}
  Partition& operator=(Partition&& o) noexcept;
  ~Partition();

  int sm_count() const { return sm_count_; }
  cu::Context context() const { return context_; }
  const Device& device() const { return *device_; }
  /// A stream whose work stays inside. `level` as for Stream::create.
  Result<Stream> stream(int level = 0) const;

 private:
  friend Result<std::vector<Partition>> split(const Device&, std::span<const int>);
  const Device* device_ = nullptr;
  cu::GreenCtx green_ = nullptr;
  cu::Context context_ = nullptr;
  int sm_count_ = 0;
};

/// Cuts the chip into disjoint partitions of at least these numbers of multiprocessors, rounded up as
/// the chip needs (sm_count() tells); a last entry of 0 takes all that is left.
/// Errors: Unsupported without green contexts (DeviceInfo::green_contexts), InvalidArgument if the
/// shares do not fit.
Result<std::vector<Partition>> split(const Device& device, std::span<const int> sm_counts);

}  // namespace vivace::device
