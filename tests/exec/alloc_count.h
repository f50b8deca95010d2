// Counts heap allocations of the calling thread: how tests hold "no malloc on the hot path".
#pragma once
#include <cstdint>

namespace vivace::testing {

/// False under a sanitizer, which brings its own allocator: tests that count must then skip.
bool counts_allocations();
/// Calls of malloc, calloc, realloc and the aligned kinds by this thread since it started;
/// operator new goes through them.
uint64_t allocations();

}  // namespace vivace::testing
