// Clocks, link and temperature of a device, from NVML if the machine has it (found at run time).
#pragma once
#include <string>

#include "vivace/base/status.h"

namespace vivace::device {

/// What a receipt records beside every figure. -1: this board does not say.
struct BoardState {
  int sm_mhz = -1, memory_mhz = -1;          // now
  int max_sm_mhz = -1, max_memory_mhz = -1;
  int temperature_c = -1;
  int power_mw = -1;
  int pcie_generation = -1, pcie_width = -1; // now: an idle link may show less than it can do
  int max_pcie_generation = -1, max_pcie_width = -1;
  unsigned long long throttle_reasons = 0;   // NVML's mask; 0 is none, 1 is idle
  std::string driver;                        // "580.159.03", "" if unknown
};

/// State of the board at `pci` ("00000000:01:00.0"). Errors: Unsupported if NVML cannot be loaded,
/// CudaError if it refuses. Takes milliseconds: not for the hot path.
Result<BoardState> board_state(const std::string& pci);

}  // namespace vivace::device
