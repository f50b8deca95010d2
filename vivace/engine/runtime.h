// Runtime: where a model lives and runs, as one object: a stream, memory, and the way into it.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "vivace/base/arch.h"
#include "vivace/engine/moved.h"
#include "vivace/exec/backend.h"

namespace vivace::engine {

/// A copy from ordinary host memory, a mapped file say, into memory that ops reach.
struct Upload {
  void* to = nullptr;
  const void* from = nullptr;
  size_t bytes = 0;
};

/// One host or one device. Setup phase, but for its stream and events. Models hold one and never ask
/// which kind it is: what differs is answered here.
class Runtime {
 public:
  /// `device`: "auto" (the first device where there is one that kernels exist for, else the host), "cpu", "cuda" (the
  /// first device) or "cuda:N"; `threads` of the host, 0 = one a physical core. `share` of a device: 0 = all of it,
  /// else in (0, 1): a part of its multiprocessors, rounded up as the chip needs, that no other machine of this process
  /// with a share has. `urgent`: blocks of its stream's kernels take free multiprocessors before those of others, where
  /// a device has such levels and no share. `most_bytes`: that reserve() gives in all; 0: as many as there are.
  /// `whole_too`: a second stream, of the whole device and as urgent as was asked, which use_whole() puts in the place
  /// of the share's; on the host it is like the first. Errors: InvalidArgument lists the names, or says how many
  /// threads there may be or what is left; Unsupported when there is no such device, or none that can be shared so.
  static Result<std::unique_ptr<Runtime>> open(const std::string& device, int threads, double share = 0,
                                               bool urgent = false, int64_t most_bytes = 0, bool whole_too = false);
  virtual ~Runtime() = default;

  virtual const char* name() const = 0;  // "cpu", "cuda:0"
  virtual Place place() const = 0;
  /// The chip; Arch::cpu for the host.
  virtual Arch arch() const = 0;
  virtual int multiprocessors() const = 0;  // of its share, or all; 0 for the host
  virtual int threads() const = 0;  // of the host's ops; 0 on a device
  virtual exec::Backend& backend() = 0;
  virtual exec::Stream& stream() = 0;
  /// Streams that stream() may be: 2 with open()'s whole_too. Graphs are captured for each.
  virtual int variants() const = 0;
  /// Which of them it is: 0, the share's, after open(), or 1, the whole device's.
  virtual int variant() const = 0;
  /// stream() is the whole device's from here on, or the share's again; what it is given runs behind all that the one
  /// before was given. Between calls of a model: what holds the other stream, or was captured on it, stays there.
  /// Errors: Unsupported without whole_too; exec::StreamSwitch::use()'s.
  virtual Status use_whole(bool whole) = 0;
  /// Steps that may be queued before the first is waited for: 1 where queueing is running.
  virtual int max_in_flight_steps() const = 0;

  /// `bytes` > 0 of zeroed memory that ops reach, without a page fault later. Errors: OutOfMemory says how
  /// much is missing; LimitExceeded beyond open()'s most_bytes.
  virtual Result<exec::Buffer> reserve(std::string name, size_t bytes) = 0;
  /// The same in memory that the host and ops both reach.
  virtual Result<exec::Buffer> reserve_shared(std::string name, size_t bytes) = 0;
  /// Bytes that reserve() could still give.
  virtual Result<int64_t> free_bytes() = 0;
  /// Begins to copy everything, as fast as the link allows. What it gives waits for it, and has to be called before
  /// either side of a copy goes; what was begun first arrives first.
  virtual Result<std::function<Status()>> begin_upload(std::span<const Upload> copies) = 0;
  /// The same, waited for.
  Status upload(std::span<const Upload> copies);
  /// While it is true, uploads and what sleep() and wake() move stand still at their next chunk, so that frames of an
  /// urgent call do not wait behind them. Null: they do not. Before the first upload.
  virtual void yield_to(const std::atomic<bool>* urgent_runs) = 0;
  /// Gives back what uploads needed; a later upload gets it again.
  virtual void finish_uploads() = 0;

  /// Moves what reserve() gave to page-locked host memory, contents intact; the device's is then
  /// anybody's. Waits for this stream's work and for nobody else's. Until wake() its stream refuses work with
  /// FailedPrecondition. Errors: Unsupported on the host; FailedPrecondition (it sleeps); OutOfMemory of the host: then
  /// it is awake as before.
  virtual Result<Moved> sleep() = 0;
  /// The reverse, at the same addresses: what was captured replays. Errors: FailedPrecondition (it does not sleep);
  /// OutOfMemory of the device: then it sleeps as before.
  virtual Result<Moved> wake() = 0;
};

}  // namespace vivace::engine
