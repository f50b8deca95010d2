// Pool: the CPU backend's worker threads. Pinned, spin-then-park, no allocation per call.
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>

namespace vivace::cpu {

/// A fixed set of threads that run one function over numbered chunks. The caller is thread 0. One job has the threads:
/// run() of another caller meanwhile, of a chunk, or in a child of fork() (which has none of them), runs its chunks
/// itself. Several pools may share the machine: a waiting thread spins for tens of microseconds, then yields, then
/// sleeps.
class Pool {
 public:
  /// `threads` counts the caller; 0 picks one a physical core the process may use. Workers are pinned,
  /// one a core, as long as there are cores enough; the caller's own thread is left as it is.
  explicit Pool(int threads = 0);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const;

  /// At least `bytes` of 64-byte aligned memory for the kernel that is running, contents undefined; valid
  /// until the next call. Grows (allocates) on the first call of a size: a warm-up run makes later ones free.
  /// Outside chunks, and one kernel at a time: whoever shares a pool among threads lets them take turns (EngineLoop,
  /// the ops and policies of Python do).
  void* scratch(size_t bytes);

  /// Calls fn(chunk) for chunk in [0, chunks), spread over the threads; returns when all are done.
  /// Which thread runs which chunk is unspecified: results must not depend on it.
  template <class Fn>
  void run(int64_t chunks, Fn&& fn) {
    using F = std::remove_reference_t<Fn>;
    run_erased(chunks, [](void* f, int64_t chunk) { (*static_cast<F*>(f))(chunk); },
               const_cast<void*>(static_cast<const void*>(&fn)));
  }

 private:
  void run_erased(int64_t chunks, void (*fn)(void*, int64_t), void* ctx);
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace vivace::cpu
