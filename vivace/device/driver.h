// The CUDA driver, found at run time, and the one way to call it: VV_CU.
#pragma once
#include <string>
#include <type_traits>

#include "vivace/base/check.h"
#include "vivace/device/cuda_api.h"

namespace vivace::device {

inline constexpr int kMinDriverVersion = 12040;  // CUDA 12.4: cuKernelGetParamInfo, cuFuncLoad, green contexts

struct Driver {
  int version = 0;       // 13000 is CUDA 13.0
  int device_count = 0;  // at least 1
};

/// Loads libcuda once for the process and initialises it. The answer, good or bad, stays.
/// Errors: Unsupported (no driver, too old, no device), CudaError (initialisation failed).
Result<const Driver*> driver();

/// The same for one named library and table; driver() is load_driver("libcuda.so.1", ...).
Result<Driver> load_driver(const char* library, cu::Api* api);

/// OK, or the first error that poisoned the CUDA context of this process. Every later call in the
/// context fails too, also for other users of it: the process must be restarted by its supervisor.
Status health();
/// Lock-free form of health().ok() for the hot path.
bool healthy();

/// "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)".
std::string describe(cu::Result r);
/// True for results after which a context does not recover.
bool is_sticky(cu::Result r);

namespace detail {
extern cu::Api g_api;

/// One argument of a failed call, printed by kind.
struct CallArg {
  enum Kind { integer, pointer, real, text } kind;
  unsigned long long bits = 0;
  double number = 0;
  const char* string = nullptr;
};
template <class T>
CallArg call_arg(const T& v) {
  if constexpr (std::is_same_v<T, const char*>) return {CallArg::text, 0, 0, v};
  else if constexpr (std::is_same_v<T, std::nullptr_t>) return {CallArg::pointer};
  else if constexpr (std::is_pointer_v<T>) return {CallArg::pointer, reinterpret_cast<unsigned long long>(v)};
  else if constexpr (std::is_floating_point_v<T>) return {CallArg::real, 0, static_cast<double>(v)};
  else return {CallArg::integer, static_cast<unsigned long long>(v)};
}

/// Builds the Status (and turns health red if the error is sticky). `names`: the call's source text.
Status call_failed(cu::Result r, const char* call, const char* names, const CallArg* args, int count);
Status call_missing(const char* call);

template <class... P, class... A>
Status call(cu::Result (*fn)(P...), const char* name, const char* names, A... args) {
  if (fn == nullptr) return call_missing(name);
  const cu::Result r = fn(args...);
  if (r == cu::kSuccess) [[likely]] return Status();
  const CallArg list[sizeof...(args) + 1] = {call_arg(args)...};
  return call_failed(r, name, names, list, sizeof...(args));
}
}  // namespace detail

}  // namespace vivace::device

/// `VV_CU_STATUS(cuMemFree_v2, ptr)`: a Status; formats only on failure. The driver must be loaded.
#define VV_CU_STATUS(fn, ...) \
  ::vivace::device::detail::call(::vivace::device::detail::g_api.fn, #fn, #__VA_ARGS__ __VA_OPT__(, ) __VA_ARGS__)
/// The same, returning from the enclosing function on an error.
#define VV_CU(fn, ...) VV_TRY(VV_CU_STATUS(fn __VA_OPT__(, ) __VA_ARGS__))
/// For destructors, where nobody can be told. A sticky error still turns health red.
#define VV_CU_IGNORE(fn, ...) static_cast<void>(VV_CU_STATUS(fn __VA_OPT__(, ) __VA_ARGS__))
