#include "vivace/device/nvml.h"

#include <dlfcn.h>

namespace vivace::device {
namespace {

using Board = struct nvmlDevice_st*;
using Return = int;  // nvmlReturn_t, 0 is success

// X(symbol, parameters): the ones without structs, whose layouts NVML versions differ in.
#define VV_NVML_FUNCTIONS(X)                                         \
  X(nvmlInit_v2, ())                                                 \
  X(nvmlSystemGetDriverVersion, (char* text, unsigned bytes))        \
  X(nvmlDeviceGetHandleByPciBusId_v2, (const char* pci, Board* out)) \
  X(nvmlDeviceGetClockInfo, (Board b, int clock, unsigned* mhz))     \
  X(nvmlDeviceGetMaxClockInfo, (Board b, int clock, unsigned* mhz))  \
  X(nvmlDeviceGetTemperature, (Board b, int sensor, unsigned* c))    \
  X(nvmlDeviceGetPowerUsage, (Board b, unsigned* mw))                \
  X(nvmlDeviceGetCurrPcieLinkGeneration, (Board b, unsigned* v))     \
  X(nvmlDeviceGetCurrPcieLinkWidth, (Board b, unsigned* v))          \
  X(nvmlDeviceGetMaxPcieLinkGeneration, (Board b, unsigned* v))      \
  X(nvmlDeviceGetMaxPcieLinkWidth, (Board b, unsigned* v))           \
  X(nvmlDeviceGetCurrentClocksThrottleReasons, (Board b, unsigned long long* mask))

#define VV_NVML_DECLARE_(name, params) Return(*name) params = nullptr;
struct Nvml {
  VV_NVML_FUNCTIONS(VV_NVML_DECLARE_)
};
#undef VV_NVML_DECLARE_

constexpr int kClockSm = 1, kClockMemory = 2, kSensorGpu = 0;

Result<Nvml> load() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr)
    return Status(Code::kUnsupported, "libnvidia-ml.so.1 is not installed: no clocks or temperatures");
  Nvml n;
#define VV_NVML_RESOLVE_(name, params)                                          \
  n.name = reinterpret_cast<decltype(n.name)>(dlsym(library, #name));           \
  if (n.name == nullptr) return Status(Code::kUnsupported, "libnvidia-ml.so.1 has no " #name);
  VV_NVML_FUNCTIONS(VV_NVML_RESOLVE_)
#undef VV_NVML_RESOLVE_
  if (const Return r = n.nvmlInit_v2(); r != 0) return Status(Code::kCudaError, strf("nvmlInit_v2() failed: %d", r));
  return n;
}

}  // namespace

Result<BoardState> board_state(const std::string& pci) {
  static const Result<Nvml> loaded = load();
  if (!loaded.ok()) return loaded.status();
  const Nvml& n = *loaded;
  Board b = nullptr;
  if (const Return r = n.nvmlDeviceGetHandleByPciBusId_v2(pci.c_str(), &b); r != 0)
    return Status(Code::kCudaError, strf("nvmlDeviceGetHandleByPciBusId_v2(%s) failed: %d", pci.c_str(), r));
  // A board that does not report a value answers an error: the field stays -1.
  BoardState s;
  const auto read = [](int* field, auto get, auto... args) {
    unsigned v = 0;
    if (get(args..., &v) == 0) *field = static_cast<int>(v);
  };
  read(&s.sm_mhz, n.nvmlDeviceGetClockInfo, b, kClockSm);
  read(&s.memory_mhz, n.nvmlDeviceGetClockInfo, b, kClockMemory);
  read(&s.max_sm_mhz, n.nvmlDeviceGetMaxClockInfo, b, kClockSm);
  read(&s.max_memory_mhz, n.nvmlDeviceGetMaxClockInfo, b, kClockMemory);
  read(&s.temperature_c, n.nvmlDeviceGetTemperature, b, kSensorGpu);
  read(&s.power_mw, n.nvmlDeviceGetPowerUsage, b);
  read(&s.pcie_generation, n.nvmlDeviceGetCurrPcieLinkGeneration, b);
  read(&s.pcie_width, n.nvmlDeviceGetCurrPcieLinkWidth, b);
  read(&s.max_pcie_generation, n.nvmlDeviceGetMaxPcieLinkGeneration, b);
  read(&s.max_pcie_width, n.nvmlDeviceGetMaxPcieLinkWidth, b);
  if (n.nvmlDeviceGetCurrentClocksThrottleReasons(b, &s.throttle_reasons) != 0) s.throttle_reasons = 0;
  char text[96] = "";
  if (n.nvmlSystemGetDriverVersion(text, sizeof(text)) == 0) s.driver = text;
  return s;
}

}  // namespace vivace::device
