#include "vivace/device/device.h"

#include <map>
#include <mutex>

#include "vivace/device/waits.h"

namespace vivace::device {
namespace {

Result<int> attribute(cu::Device d, cu::DeviceAttr which) {
  int v = 0;
  VV_CU(cuDeviceGetAttribute, &v, static_cast<int>(which), d);
  return v;
}

Status read_info(cu::Device d, DeviceInfo* info) {
  char text[256] = "";
  VV_CU(cuDeviceGetName, text, static_cast<int>(sizeof(text)), d);
  info->name = text;
  unsigned char uuid[16] = {};
  VV_CU(cuDeviceGetUuid_v2, uuid, d);
  for (unsigned char b : uuid) info->uuid += strf("%02x", b);
  size_t bytes = 0;
  VV_CU(cuDeviceTotalMem_v2, &bytes, d);
  info->memory_bytes = static_cast<int64_t>(bytes);

  const struct {
    cu::DeviceAttr attr;
    int* field;
  } ints[] = {{cu::kComputeMajor, &info->major},          {cu::kComputeMinor, &info->minor},
              {cu::kSmCount, &info->sm_count},            {cu::kL2Bytes, &info->l2_bytes},
              {cu::kSmemPerBlockOptin, &info->smem_per_block}, {cu::kSmemPerSm, &info->smem_per_sm},
              {cu::kRegistersPerSm, &info->registers_per_sm},  {cu::kMaxThreadsPerSm, &info->threads_per_sm},
              {cu::kMaxThreadsPerBlock, &info->threads_per_block}, {cu::kClockRateKhz, &info->sm_khz},
              {cu::kMemoryClockKhz, &info->memory_khz},   {cu::kMemoryBusBits, &info->memory_bus_bits},
              {cu::kAsyncEngines, &info->async_engines}};
  for (const auto& row : ints) {
    VV_ASSIGN(*row.field, attribute(d, row.attr));
  }
  const struct {
    cu::DeviceAttr attr;
    bool* field;
  } flags[] = {{cu::kIntegrated, &info->integrated},
               {cu::kVirtualMemory, &info->virtual_memory},
               {cu::kClusterLaunch, &info->clusters}};
  for (const auto& row : flags) {
    VV_ASSIGN(const int v, attribute(d, row.attr));
    *row.field = v != 0;
  }
  VV_ASSIGN(const int domain, attribute(d, cu::kPciDomain));
  VV_ASSIGN(const int bus, attribute(d, cu::kPciBus));
  VV_ASSIGN(const int slot, attribute(d, cu::kPciDevice));
  info->pci = strf("%08x:%02x:%02x.0", domain, bus, slot);
  info->arch = arch_of(info->major, info->minor);

  // Asked by trying: whether the symbols are there does not say whether the chip can be split.
  cu::DevResource sm;
  info->green_contexts =
      detail::g_api.cuGreenCtxStreamCreate != nullptr && detail::g_api.cuDeviceGetDevResource != nullptr &&
      detail::g_api.cuDeviceGetDevResource(d, &sm, cu::kResourceSm) == cu::kSuccess && sm.sm.sm_count > 0;
  return Status();
}

}  // namespace

Result<int> Device::count() {
  VV_ASSIGN(const Driver* d, driver());
  return d->device_count;
}

Result<Device*> Device::get(int ordinal) {
  VV_ASSIGN(const Driver* d, driver());
  if (ordinal < 0 || ordinal >= d->device_count)
    return Status(Code::kInvalidArgument,
                  strf("device %d: this process sees devices 0 to %d", ordinal, d->device_count - 1));
  static std::mutex mutex;
  static auto& devices = *new std::map<int, Device*>;  // never destroyed: handles may outlive main()
  const std::lock_guard<std::mutex> lock(mutex);
  if (const auto it = devices.find(ordinal); it != devices.end()) return it->second;
  VV_ASSIGN(Device* device, open(ordinal));
  devices[ordinal] = device;
  return device;
}

Result<Device*> Device::open(int ordinal) {
  std::unique_ptr<Device> d(new Device);
  d->info_.ordinal = ordinal;
  VV_CU(cuDeviceGet, &d->handle_, ordinal);
  VV_TRY(read_info(d->handle_, &d->info_));
  VV_CU(cuDevicePrimaryCtxRetain, &d->context_, d->handle_);
  VV_TRY(d->bind());
  VV_CU(cuCtxGetStreamPriorityRange, &d->least_priority_, &d->greatest_priority_);
  return d.release();
}

Status Device::check_arch() const {
  if (info_.arch != Arch::cpu) return Status();
  std::string known;
  for (Arch a : kGpuArchs) known += std::string(known.empty() ? "" : ", ") + vivace::name(a);
  return Status(Code::kUnsupported, strf("%s has compute capability %d.%d; kernels exist for %s: use the CPU backend",
                                         info_.name.c_str(), info_.major, info_.minor, known.c_str()));
}

Status Device::bind() const {
  // Other libraries change the current context, so it is asked, not remembered.
  cu::Context current = nullptr;
  VV_CU(cuCtxGetCurrent, &current);
  if (current == context_) return Status();
  VV_CU(cuCtxSetCurrent, context_);
  return Status();
}

Result<MemoryInfo> Device::memory() const {
  VV_TRY(bind());
  size_t free_bytes = 0, total_bytes = 0;
  VV_CU(cuMemGetInfo_v2, &free_bytes, &total_bytes);
  return MemoryInfo{static_cast<int64_t>(free_bytes), static_cast<int64_t>(total_bytes)};
}

Status Device::synchronize() const {
  count_device_wide_wait();
  VV_TRY(bind());
  VV_CU(cuCtxSynchronize);
  return Status();
}

Result<bool> Device::can_access(const Device& peer) const {
  if (&peer == this) return true;
  int can = 0;
  VV_CU(cuDeviceCanAccessPeer, &can, handle_, peer.handle_);
  return can != 0;
}

Status Device::enable_peer(const Device& peer) const {
  VV_ASSIGN(const bool can, can_access(peer));
  if (!can)
    return Status(
        Code::kUnsupported,
        strf("device %d cannot reach the memory of device %d: no NVLink or PCIe peer path; copy through the host",
             info_.ordinal, peer.info_.ordinal));
  if (&peer == this) return Status();
  VV_TRY(bind());
  if (detail::g_api.cuCtxEnablePeerAccess == nullptr) return detail::call_missing("cuCtxEnablePeerAccess");
  const cu::Result r = detail::g_api.cuCtxEnablePeerAccess(peer.context_, 0);
  if (r == cu::kSuccess || r == cu::kPeerAccessAlreadyEnabled) return Status();
  const detail::CallArg arg = detail::call_arg(peer.info_.ordinal);
  return detail::call_failed(r, "cuCtxEnablePeerAccess", "peer", &arg, 1);
}

Result<int> Device::priority(int level) const {
  if (level < 0 || level >= priority_levels())
    return Status(Code::kInvalidArgument,
                  strf("stream priority level %d: this device has levels 0 to %d", level, priority_levels() - 1));
  return least_priority_ - level;
}

Result<int> device_of(const void* ptr) {
  const auto address = reinterpret_cast<cu::DevicePtr>(ptr);
  int type = 0, ordinal = 0;
  VV_TRY(driver().status());  // the first question about a GPU may be this one
  if (detail::g_api.cuPointerGetAttribute == nullptr) return detail::call_missing("cuPointerGetAttribute");
  // Plain host memory is unknown to the driver and answers an error, which is no failure here.
  if (detail::g_api.cuPointerGetAttribute(&type, cu::kPointerMemoryType, address) != cu::kSuccess ||
      type != cu::kMemoryTypeDevice)
    return Status(Code::kInvalidDevice, strf("%p is not device memory: copy the data to the GPU first", ptr));
  VV_CU(cuPointerGetAttribute, &ordinal, cu::kPointerDeviceOrdinal, address);
  return ordinal;
}

}  // namespace vivace::device
