// Counts heap allocations and page faults: how tests hold "no malloc on the hot path".
#pragma once
#include <cstdint>

namespace vivace::testing {

/// False under a sanitizer, which brings its own allocator: tests that count must then skip.
bool counts_allocations();
/// Calls of malloc, calloc, realloc and the aligned kinds by this thread since it started;
/// operator new goes through them.
uint64_t allocations();
/// Minor page faults of the whole process so far.
int64_t minor_faults();

struct Quiet {
  uint64_t allocations = 0;  // of this thread, in all rounds after the first
  int64_t faults = 0;        // of the process, in the quietest round after the first
  int failures = 0;
};

/// Runs `calls` times step() -> bool in rounds. The first warms up. Worker threads take their own first
/// faults whenever the system first runs them, so up to five more rounds may pass until one is without
/// a fault; a path that faults now and then faults in each of 10^4 calls' rounds.
template <class Step>
Quiet watch(int calls, Step&& step) {
  Quiet q;
  for (int round = 0; round < 6; ++round) {
    const int64_t faults_before = minor_faults();
    const uint64_t before = allocations();
    for (int i = 0; i < calls; ++i) q.failures += step() ? 0 : 1;
    const uint64_t allocated = allocations() - before;
    const int64_t faults = minor_faults() - faults_before;
    if (round == 0) continue;
    q.allocations += allocated;
    q.faults = round == 1 || faults < q.faults ? faults : q.faults;
    if (q.faults == 0) break;
  }
  return q;
}

}  // namespace vivace::testing
