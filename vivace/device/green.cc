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
  return Stream::adopt(*device_, handle, sm_count_);
}

Result<std::vector<Partition>> split(const Device& device, std::span<const int> sm_counts) {
  const DeviceInfo& info = device.info();
  if (!info.green_contexts)
    return Status(
        Code::kUnsupported,
        strf("%s with this driver cannot be partitioned: green contexts need CUDA 12.5; use stream priorities",
             info.name.c_str()));
  VV_TRY(device.bind());
  cu::DevResource whole, rest;
  VV_CU(cuDeviceGetDevResource, device.handle(), &whole, cu::kResourceSm);
  // What a split gives cannot be split again, so one call cuts the chip into the smallest groups, and partitions are
  // runs of them: the same counts in front give the same multiprocessors in every call.
  const unsigned unit = whole.sm.min_partition;
  unsigned groups = 0;
  VV_CU(cuDevSmResourceSplitByCount, nullptr, &groups, &whole, nullptr, 0u, unit);
  std::vector<cu::DevResource> cut(groups);
  VV_CU(cuDevSmResourceSplitByCount, cut.data(), &groups, &whole, &rest, 0u, unit);
  cut.resize(groups);
  if (rest.sm.sm_count > 0) cut.push_back(rest);  // for a last partition that takes what is left
  std::vector<Partition> made;
  size_t used = 0;
  for (size_t i = 0; i < sm_counts.size(); ++i) {
    const int want = sm_counts[i];
    const bool last = want == 0 && i + 1 == sm_counts.size();
    size_t end = used;
    int has = 0, left = 0;
    for (size_t g = used; g < cut.size(); ++g) {
      const bool takes = last || (has < want && g < groups);
      (takes ? has : left) += static_cast<int>(cut[g].sm.sm_count);
      if (takes) end = g + 1;
    }
    if ((want <= 0 && !last) || has < want || end == used)
      return Status(Code::kInvalidArgument,
                    strf("partition %zu wants %d multiprocessors, %d of %d are left, in groups of %u", i, want,
                         has + left, info.sm_count, unit));
    cu::DevResourceDesc desc = nullptr;
    VV_CU(cuDevResourceGenerateDesc, &desc, &cut[used], static_cast<unsigned>(end - used));
    Partition p;
    p.device_ = &device;
    p.sm_count_ = has;
    VV_CU(cuGreenCtxCreate, &p.green_, desc, device.handle(), cu::kGreenDefaultStream);
    VV_CU(cuCtxFromGreenCtx, &p.context_, p.green_);
    made.push_back(std::move(p));
    used = end;
  }
  return made;
}

}  // namespace vivace::device
