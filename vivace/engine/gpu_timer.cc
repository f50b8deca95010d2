#include "vivace/engine/gpu_timer.h"

#include "vivace/device/stream.h"
#include "vivace/exec/cuda_stream.h"

namespace vivace::engine {
namespace {

class DeviceWatch final : public GpuTimer {
 public:
  DeviceWatch(device::Event start, device::Event stop) : start_(std::move(start)), stop_(std::move(stop)) {}
  Status start(exec::Stream& stream) override { return start_.record(of(stream)); }
  Status stop(exec::Stream& stream) override { return stop_.record(of(stream)); }
  Result<double> us() const override { return device::Event::elapsed_us(start_, stop_); }

 private:
  static cu::Stream of(const exec::Stream& stream) { return static_cast<const exec::CudaStream&>(stream).handle(); }
  device::Event start_, stop_;
};

}  // namespace

Result<std::unique_ptr<GpuTimer>> GpuTimer::open(exec::Stream& stream) {
  const auto* const cuda = dynamic_cast<const exec::CudaStream*>(&stream);
  if (cuda == nullptr) return std::make_unique<GpuTimer>();
  VV_ASSIGN(device::Event start, device::Event::create(*cuda->device(), true));
  VV_ASSIGN(device::Event stop, device::Event::create(*cuda->device(), true));
  return std::unique_ptr<GpuTimer>(std::make_unique<DeviceWatch>(std::move(start), std::move(stop)));
}

}  // namespace vivace::engine
