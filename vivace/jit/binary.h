// Source and Binary: what goes into a compile and what comes out. Both are plain data.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vivace/base/arch.h"
#include "vivace/base/status.h"

namespace vivace::jit {

/// One translation unit. It may include embedded headers and, by <...>, the toolkit's.
struct Source {
  std::string name;                      // for messages: "rms_norm.cu"
  std::string text;
  std::vector<std::string> expressions;  // kernels wanted: "vivace::norm::kernel<float, 4>", or an extern "C" name
  std::vector<std::string> flags;        // beyond the fixed ones, e.g. "-DVV_STAGES=3"
  Arch arch = Arch::sm80;
};

/// What ptxas says of one entry: the figures the kernel gate bounds.
struct Resources {
  std::string symbol;
  int registers = 0, static_smem = 0;    // static_smem in bytes
  int stack_bytes = 0, spill_stores = 0, spill_loads = 0;
};

/// A compiled Source.
struct Binary {
  std::string cubin;
  std::vector<std::pair<std::string, std::string>> symbols;  // expression -> symbol in the cubin
  std::vector<Resources> resources;
  std::string arch;      // "sm_90a"
  std::string compiler;  // "NVRTC 13.0": recorded, not part of the key
  std::string warnings;

  /// The symbol of an expression. Errors: NotFound lists what there is.
  Result<std::string> symbol(std::string_view expression) const;
};
using BinaryPtr = std::shared_ptr<const Binary>;

/// Byte form, and back with every length checked. Errors: CorruptData.
std::string serialize(const Binary& binary);
Result<Binary> parse_binary(std::string_view bytes);

/// The same for a source, as helper processes get it (helper.h).
std::string serialize(const Source& source);
Result<Source> parse_source(std::string_view bytes);

/// 64 hex digits over the source, every embedded header it includes directly or through others, the
/// expressions, flags and arch. Equal keys give interchangeable binaries.
std::string cache_key(const Source& source);

/// Bytes of the embedded headers that a source includes, directly or through others: what its compile costs goes with
/// them.
size_t included_bytes(const Source& source);

}  // namespace vivace::jit
