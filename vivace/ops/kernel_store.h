// The process's compiler of op kernels: packs, disk cache, NVRTC; and the whole set at once, for
// warm-ups, packs and compile gates.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "vivace/jit/compiler.h"
#include "vivace/ops/registry.h"

namespace vivace::ops {

/// Adds a pack, searched after those added before; then come $VIVACE_PACKS (paths with ':'
/// between) and packs/*.vvp beside the library or Python module.
/// Errors: NotFound, CorruptData; FailedPrecondition once a kernel has been asked for.
Status add_pack(const std::string& path);

/// The one compiler, made at the first call. Thread-safe. Errors: those of Compiler::create, kept.
Result<jit::Compiler*> compiler();

/// What load_kernel() compiles for an instance. One kernel a translation unit: a call that needs one
/// tactic waits for that one only, and packs, cache and warm-up share its key.
jit::Source source_of(const Instance& instance, Arch arch);

/// Every instance that `rows` (primitive ops; composites have none) name for the chip, each once.
std::vector<jit::Source> kernel_sources(std::span<const OpRow* const> rows, Arch arch);

/// Obtains all instances of `rows` for the device in parallel and loads them. `progress` is called from
/// one thread at a time. Setup phase. Errors: the first failed compile; Unsupported.
Status prewarm(const device::Device& device, std::span<const OpRow* const> rows,
               const std::function<void(const jit::Progress&)>& progress);

/// Compiles every instance of `rows` for `archs` (a GPU is not needed) and writes them as one pack.
/// Answers how many. Errors: CompileError, Unsupported (no NVRTC, or one that does not know a chip), IoError.
Result<size_t> pack_kernels(const std::string& path, std::span<const OpRow* const> rows, std::span<const Arch> archs,
                            jit::CompilerOptions options);

}  // namespace vivace::ops
