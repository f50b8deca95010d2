// The device headers that are built into the library: an installed Vivace compiles kernels without
// its source tree.
#pragma once
#include <span>

namespace vivace::jit {

struct Header {
  const char* name;  // as included: "vivace/kernels/norm/rms_norm.cuh"
  const char* text;
};

/// Sorted by name. Made at build time by tools/embed_headers.cmake.
std::span<const Header> built_in_headers();

/// The same, but for headers that $VIVACE_KERNEL_DIR, read once, has a file for: a kernel is changed
/// and run without a build. Cache keys follow the text, so that nothing stale is found.
std::span<const Header> embedded_headers();

/// The text of an embedded header, or nullptr.
const char* find_header(const char* name);

}  // namespace vivace::jit
