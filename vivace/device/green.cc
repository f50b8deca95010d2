#include "vivace/device/green.h"

namespace vivace::device {

Partition& Partition::operator=(Partition&& o) noexcept {
  std::swap(device_, o.device_);
  std::swap(green_, o.green_);
  std::swap(context_, o.context_);
  std::swap(sm_count_, o.sm_count_);
  return *this;
}

Partition::~Partition() {
  if (green_ != nullptr) VV_CU_IGNORE(cuGreenCtxDestroy, green_);
}

Result<Stream> Partition::stream(int level) const {
  VV_ASSIGN(const int priority, device_->priority(level));
  cu::Stream handle = nullptr;
  VV_CU(cuGreenCtxStreamCreate, &handle, green_, cu::kStreamNonBlocking, priority);
  return Stream::adopt(*device_, handle);
}

Result<std::vector<Partition>> split(const Device& device, std::span<const int> sm_counts) {
  const DeviceInfo& info = device.info();
  if (!info.green_contexts)
    return Status(Code::kUnsupported, strf("%s with this driver cannot be partitioned: green contexts need CUDA 12.5; use stream priorities",
                                           info.name.c_str()));
  VV_TRY(device.bind());
  cu::DevResource rest;
  VV_CU(cuDeviceGetDevResource, device.handle(), &rest, cu::kResourceSm);
  std::vector<Partition> made;
  for (size_t i = 0; i < sm_counts.size(); ++i) {
    const int want = sm_counts[i];
    const bool last = want == 0 && i + 1 == sm_counts.size();
    if ((want <= 0 && !last) || static_cast<unsigned>(want) > rest.sm.sm_count || rest.sm.sm_count == 0)
      return Status(Code::kInvalidArgument, strf("partition %zu wants %d multiprocessors, %u of %d are left", i, want, rest.sm.sm_count, info.sm_count));
    cu::DevResource share = rest;
    if (!last) {
      cu::DevResource remaining;
      unsigned groups = 1;
      VV_CU(cuDevSmResourceSplitByCount, &share, &groups, &rest, &remaining, 0u, static_cast<unsigned>(want));
      rest = remaining;
    }
    cu::DevResourceDesc desc = nullptr;
    VV_CU(cuDevResourceGenerateDesc, &desc, &share, 1u);
    Partition p;
    p.device_ = &device;
    p.sm_count_ = static_cast<int>(share.sm.sm_count);
    VV_CU(cuGreenCtxCreate, &p.green_, desc, device.handle(), cu::kGreenDefaultStream);
    VV_CU(cuCtxFromGreenCtx, &p.context_, p.green_);
    made.push_back(std::move(p));
  }
  return made;
}

}  // namespace vivace::device
