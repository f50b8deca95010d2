// TransferEngine: asynchronous copies between host and device, by priority and in chunks, so that a
// small urgent copy never waits behind a checkpoint.
#pragma once
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::device {

enum class Direction : uint8_t { to_device, to_host, on_device };
inline constexpr int kDirections = 3;

/// What the engine needs of a device: one ordered lane a direction, and marks in it. CUDA's is in
/// cuda_transfer.h; the tests have one in host memory.
class CopyBackend {
 public:
  using Mark = uint64_t;
  virtual ~CopyBackend() = default;
  /// Called once by every thread that uses the backend.
  virtual Status attach_thread() = 0;
  /// Queues a copy. Thread-safe; returns before it is done.
  virtual Status copy(Direction lane, void* to, const void* from, size_t bytes) = 0;
  virtual Result<Mark> mark_create() = 0;
  virtual void mark_destroy(Mark mark) = 0;
  /// Sets the mark behind everything queued in the lane so far, and waits for a mark that was set.
  virtual Status mark_set(Direction lane, Mark mark) = 0;
  virtual Status mark_wait(Mark mark) = 0;
  /// Page-locked memory.
  virtual Result<void*> host_allocate(size_t bytes) = 0;
  virtual void host_free(void* data) = 0;
};

struct Transfer {
  Direction direction = Direction::to_device;
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
  int priority = 0;     // higher goes first; equal ones in order of submission
  /// `from` (to_device) is pageable memory, a mapped file say: it goes through the pinned ring. Memory
  /// that is not staged must be page-locked to be copied asynchronously.
  bool staged = false;
  /// Bytes done so far, in no particular order of addresses; called by one thread at a time, never
  /// after wait() has returned.
  std::function<void(size_t done, size_t total)> on_progress = {};
};

/// A submitted transfer. Copies of it stand for the same one.
class Ticket {
 public:
  /// Blocks until every chunk is done (or the transfer failed or was cancelled). Cancelled, or the
  /// first chunk's error.
  Status wait() const;
  bool done() const;
  size_t bytes_done() const;
  /// Chunks that have not begun are left out. Chunks in flight finish before wait() returns.
  void cancel();

 private:
  friend class TransferEngine;
  struct State;
  std::shared_ptr<State> state_;
};

struct LaneStats {
  int64_t bytes = 0, transfers = 0;
  double busy_seconds = 0;  // with at least one chunk in the lane
  double bytes_per_s() const { return busy_seconds > 0 ? static_cast<double>(bytes) / busy_seconds : 0; }
};

struct TransferOptions {
  size_t chunk_bytes = size_t{4} << 20;
  int chunks_in_flight = 2;  // a thread; the ring has threads x this many chunks
  int staging_threads = 4;   // of the lane to the device: one core does not fill a PCIe 5 link
  /// While it is true, transfers of a priority below 0 begin no chunk; null: they do. Must outlive the engine.
  const std::atomic<bool>* pause = nullptr;
};

/// Thread-safe. The memory of a transfer must stay valid until its ticket is done.
class TransferEngine {
 public:
  static Result<std::unique_ptr<TransferEngine>> create(CopyBackend& backend, TransferOptions options);
  /// Cancels what has not begun and waits for the rest.
  ~TransferEngine();
  /// Errors: InvalidArgument (null address), Closed.
  Result<Ticket> submit(Transfer transfer);
  LaneStats stats(Direction lane) const;

 private:
  struct Chunk {
    std::shared_ptr<Ticket::State> owner;
    size_t offset = 0, bytes = 0;
  };
  struct Slot {
    CopyBackend::Mark mark = 0;
    void* ring = nullptr;  // chunk_bytes of pinned memory, in the lane to the device
    Chunk chunk;           // in flight
  };
  struct Lane {
    std::deque<std::shared_ptr<Ticket::State>> queue;  // by priority, with chunks left to begin
    int in_flight = 0;                                 // chunks
    double busy_since = 0;
    LaneStats stats;
  };
  TransferEngine(CopyBackend& backend, TransferOptions options) : backend_(backend), options_(options) {}
  Status start();
  void work(Direction lane, std::vector<Slot>* slots);
  bool next_chunk(Direction lane, bool block, Chunk* chunk);
  Status issue(Direction lane, Slot* slot, const Chunk& chunk);
  void finish(Direction lane, const Chunk& chunk, Status status);

  CopyBackend& backend_;
  TransferOptions options_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;
  std::array<Lane, kDirections> lanes_;
  bool closing_ = false;
  std::vector<std::unique_ptr<std::vector<Slot>>> slots_;  // one list a thread
  std::vector<std::thread> threads_;
};

}  // namespace vivace::device
