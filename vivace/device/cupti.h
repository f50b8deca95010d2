// CUPTI: the driver's own times of kernels, where the machine has the library. Found at run time, as the driver.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::device::cupti {

/// A kernel that ran, by the device's clock.
struct KernelRecord {
  std::string symbol;       // mangled
  uint64_t start_ns = 0, end_ns = 0;
  uint64_t id = 0;          // of push() around the launch; 0: somebody else's
};

/// The library and its version, once start() has loaded it.
struct Info {
  std::string library;
  unsigned version = 0;
};

/// Begins to record the kernels of this process. `candidates`: names or paths of the library, tried in turn; the first
/// one that loads stays. Errors: Unsupported (no library, or it lacks a call), CudaError (CUPTI refuses, because
/// another profiler has it for example).
Result<Info> start(const std::vector<std::string>& candidates);
/// Around a launch on this thread: its records have `id`, which is not 0.
void push(uint64_t id);
void pop();
/// Ends the recording. Work must be done: the caller has waited for the devices. In order of start.
Result<std::vector<KernelRecord>> stop();

}  // namespace vivace::device::cupti
