#include "vivace/device/driver.h"

#include <dlfcn.h>

#include <atomic>
#include <mutex>

namespace vivace::device {
namespace {

// Written once, by the first poisoning error. The string is never changed after the flag is set.
std::atomic<bool> g_poisoned{false};
std::mutex g_poison_mutex;
std::string* g_poison = nullptr;  // leaked on purpose: read during process exit too

void poison(const std::string& message) {
  const std::lock_guard<std::mutex> lock(g_poison_mutex);
  if (g_poison != nullptr) return;
  g_poison = new std::string(message);
  g_poisoned.store(true, std::memory_order_release);
}

const char* result_text(cu::Result (*get)(cu::Result, const char**), cu::Result r) {
  const char* text = nullptr;
  if (get != nullptr && get(r, &text) == cu::kSuccess && text != nullptr) return text;
  return "no text";
}

std::string print(const detail::CallArg& a) {
  switch (a.kind) {
    case detail::CallArg::integer: return strf(a.bits > 0xffffffffull ? "0x%llx" : "%llu", a.bits);
    case detail::CallArg::pointer: return strf("0x%llx", a.bits);
    case detail::CallArg::real: return strf("%g", a.number);
    case detail::CallArg::text: return strf("\"%s\"", a.string == nullptr ? "" : a.string);
  }
  return "?";
}

Status resolve(void* library, const char* path, cu::Api* api) {
  std::string missing;
#define VV_RESOLVE_(name, params)                                                        \
  api->name = reinterpret_cast<decltype(api->name)>(dlsym(library, #name));               \
  if (api->name == nullptr) missing += missing.empty() ? #name : ", " #name;
  VV_CUDA_FUNCTIONS(VV_RESOLVE_)
#undef VV_RESOLVE_
#define VV_RESOLVE_(name, params) api->name = reinterpret_cast<decltype(api->name)>(dlsym(library, #name));
  VV_CUDA_OPTIONAL_FUNCTIONS(VV_RESOLVE_)
#undef VV_RESOLVE_
  if (missing.empty()) return Status();
  return Status(Code::kUnsupported, strf("%s lacks %s: the NVIDIA driver is older than CUDA %d.%d; update it", path,
                                         missing.c_str(), kMinDriverVersion / 1000, kMinDriverVersion % 1000 / 10));
}

}  // namespace

namespace detail {

cu::Api g_api;

Status call_missing(const char* call) {
  return Status(Code::kUnsupported, std::string(call) + ": this NVIDIA driver does not have it; update the driver");
}

Status call_failed(cu::Result r, const char* call, const char* names, const CallArg* args, int count) {
  std::string message = strf("%s(%s) failed: %s", call, names, describe(r).c_str());
  for (int i = 0; i < count; ++i) message += (i == 0 ? "; arguments: " : ", ") + print(args[i]);
  if (is_sticky(r)) {
    message += "; the CUDA context is lost: restart this process";
    poison(message);
  }
  const Code code = r == cu::kOutOfMemory    ? Code::kOutOfMemory
                    : r == cu::kNotSupported ? Code::kUnsupported
                                             : Code::kCudaError;
  return Status(code, std::move(message));
}

}  // namespace detail

std::string describe(cu::Result r) {
  return strf("%s, %d (%s)", result_text(detail::g_api.cuGetErrorName, r), r,
              result_text(detail::g_api.cuGetErrorString, r));
}

bool is_sticky(cu::Result r) {
  switch (r) {
    case 214:  // ECC_UNCORRECTABLE
    case 220:  // NVLINK_UNCORRECTABLE
    case 226:  // CONTAINED
    case 700:  // ILLEGAL_ADDRESS
    case 702:  // LAUNCH_TIMEOUT
    case 709:  // CONTEXT_IS_DESTROYED
    case 710:  // ASSERT
    case 714:  // HARDWARE_STACK_ERROR
    case 715:  // ILLEGAL_INSTRUCTION
    case 716:  // MISALIGNED_ADDRESS
    case 717:  // INVALID_ADDRESS_SPACE
    case 718:  // INVALID_PC
    case 719:  // LAUNCH_FAILED
    case 721:  // TENSOR_MEMORY_LEAK
    case 999:  // UNKNOWN
      return true;
    default: return false;
  }
}

bool healthy() { return !g_poisoned.load(std::memory_order_acquire); }

Status health() {
  if (healthy()) return Status();
  return Status(Code::kCudaError, "this process must be restarted: " + *g_poison);
}

Result<Driver> load_driver(const char* path, cu::Api* api) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* why = dlerror();
    return Status(Code::kUnsupported,
                  strf("no NVIDIA driver: %s; install the driver (CUDA %d.%d or newer) or use the CPU backend",
                       why == nullptr ? path : why, kMinDriverVersion / 1000, kMinDriverVersion % 1000 / 10));
  }
  // The version first: an old driver is told so before it is blamed for a missing symbol.
  Driver d;
  const auto get_version = reinterpret_cast<decltype(api->cuDriverGetVersion)>(dlsym(library, "cuDriverGetVersion"));
  if (get_version == nullptr || get_version(&d.version) != cu::kSuccess)
    return Status(Code::kUnsupported, strf("%s is not a CUDA driver: cuDriverGetVersion does not answer", path));
  if (d.version < kMinDriverVersion)
    return Status(
        Code::kUnsupported,
        strf("the NVIDIA driver supports CUDA %d.%d, Vivace needs %d.%d or newer; update the driver", d.version / 1000,
             d.version % 1000 / 10, kMinDriverVersion / 1000, kMinDriverVersion % 1000 / 10));
  VV_TRY(resolve(library, path, api));
  const cu::Result r = api->cuInit(0);
  if (r == cu::kNoDevice ||
      (r == cu::kSuccess && api->cuDeviceGetCount(&d.device_count) == cu::kSuccess && d.device_count == 0))
    return Status(
        Code::kUnsupported,
        "the NVIDIA driver sees no GPU: check the device nodes, the container's GPU flags and CUDA_VISIBLE_DEVICES");
  if (r == cu::kStubLibrary)
    return Status(Code::kUnsupported,
                  strf("%s is the toolkit's stub, not a driver: remove it from the library path", path));
  if (r != cu::kSuccess)
    return Status(Code::kCudaError,
                  strf("cuInit(0) failed: %s, %d (%s); see the kernel log, then restart the machine's driver",
                       result_text(api->cuGetErrorName, r), r, result_text(api->cuGetErrorString, r)));
  return d;  // the library stays loaded: its functions are called until the process ends
}

Result<const Driver*> driver() {
  static const Result<Driver> loaded = load_driver("libcuda.so.1", &detail::g_api);
  if (!loaded.ok()) return loaded.status();
  return &*loaded;
}

}  // namespace vivace::device
