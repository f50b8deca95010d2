#include "vivace/engine/gpu_timer.h"

#include "vivace/device/stream.h"
#include "vivace/exec/cuda_stream.h"

namespace vivace::engine {
namespace {

class DeviceWatch final : public GpuTimer {
 public:
  DeviceWatch(cu::Stream stream, device::Event start, device::Event stop)
      : stream_(stream), start_(std::move(start)), stop_(std::move(stop)) {}
  Status start() override { return start_.record(stream_); }
  Status stop() override { return stop_.record(stream_); }
  Result<double> us() const override { return device::Event::elapsed_us(start_, stop_); }

 private:
  cu::Stream stream_;
  device::Event start_, stop_;
};

}  // namespace

Result<std::unique_ptr<GpuTimer>> GpuTimer::open(exec::Stream& stream) {
  const auto* const cuda = dynamic_cast<const exec::CudaStream*>(&stream);
  if (cuda == nullptr) return std::make_unique<GpuTimer>();
  VV_ASSIGN(device::Event start, device::Event::create(*cuda->device(), true));
  VV_ASSIGN(device::Event stop, device::Event::create(*cuda->device(), true));
  return std::unique_ptr<GpuTimer>(std::make_unique<DeviceWatch>(cuda->handle(), std::move(start), std::move(stop)));
}

}  // namespace vivace::engine
