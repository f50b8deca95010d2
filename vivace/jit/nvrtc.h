// NVRTC, found at run time: source -> cubin. Knows no op, no cache and no GPU.
#pragma once
#include <string>
#include <vector>

#include "vivace/jit/binary.h"

namespace vivace::jit {

/// Adds a folder to look in before the usual places: a Python site-packages folder, a toolkit or a
/// library folder. Call before the first compile.
void add_search_path(const std::string& folder);
std::vector<std::string> search_paths();

struct NvrtcInfo {
  std::string library;                   // path of the loaded library
  std::string version;                   // "13.0"
  std::vector<std::string> include_dirs; // with cuda_fp16.h and its like
  std::vector<int> archs;                // compute capability x 10 that it can target
};

/// Loads NVRTC once. Looked for, in this order: VIVACE_NVRTC (a file or folder), added paths,
/// CUDA_HOME and CUDA_PATH, the system's loader, the toolkit of the nvcc in PATH.
/// Errors: Unsupported says what to install.
Result<const NvrtcInfo*> nvrtc();

/// Compiles now, in this thread; safe to call from many. Takes 0.02 s to a few seconds.
/// Errors: CompileError starts with the first real error and its source line and names the file with
/// the whole log; Unsupported if this NVRTC does not know the arch.
Result<Binary> compile(const Source& source);

/// The first error of an NVRTC or ptxas log, with its source line and caret where the log has them;
/// "" if it has none.
std::string first_error(const std::string& log);

/// The entries of a ptxas -v log.
std::vector<Resources> parse_resources(const std::string& log);

}  // namespace vivace::jit
