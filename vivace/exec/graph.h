// Graph: ShapeKey -> captured executable, bounded.
#pragma once
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "vivace/exec/shape_key.h"
#include "vivace/exec/stream.h"

namespace vivace::exec {

/// The variants of one piece of work. Capturing is setup; replay() neither allocates, locks nor
/// formats, and a key that was not captured is an error, never a capture. Nothing is evicted unless
/// asked. Not thread-safe: one thread at a time. Must not outlive the backend of its executables.
class Graph {
 public:
  /// `bound`: the most variants it will hold.
  Graph(std::string name, size_t bound);
  Graph(const Graph&) = delete;  // plans hold its address
  Graph& operator=(const Graph&) = delete;

  /// Records fn's launches and keeps them under `key`, replacing an unpinned variant of that key.
  /// If anything fails, the graph is as it was and the stream no longer captures.
  /// Errors: LimitExceeded beyond the bound, FailedPrecondition for a pinned key or a stream that
  /// is capturing already, and whatever fn answers.
  Status capture(ShapeKey key, Stream& stream, const std::function<Status(Stream&)>& fn);
  /// The same with an executable that was made elsewhere. Errors: as capture; InvalidArgument for null.
  Status adopt(ShapeKey key, std::unique_ptr<Executable> executable);

  /// OK if a capture of `key` would be kept: there is room, and the key is not pinned.
  Status admit(ShapeKey key) const;

  /// Issues the variant on `stream`. Errors: NoVariant names the key and the captured ones.
  Status replay(ShapeKey key, Stream& stream);

  /// A pinned variant is neither replaced nor evicted. Pins count: unpin() as often as pin().
  Status pin(ShapeKey key);
  Status unpin(ShapeKey key);

  /// Errors: NoVariant; FailedPrecondition if pinned.
  Status evict(ShapeKey key);
  /// Evicts the unpinned variant whose capture or replay lies furthest back, and names it.
  /// Errors: FailedPrecondition if there is none.
  Result<ShapeKey> evict_lru();

  bool has(ShapeKey key) const { return find(key) != nullptr; }
  bool pinned(ShapeKey key) const;
  /// The variant's executable, or nullptr. Valid until the variant is replaced or evicted: pin it.
  Executable* executable(ShapeKey key);
  std::vector<ShapeKey> keys() const;  // ascending
  size_t size() const { return variants_.size(); }
  size_t bound() const { return bound_; }
  const std::string& name() const { return name_; }

 private:
  struct Variant {
    ShapeKey key;
    uint32_t pins = 0;
    uint64_t used = 0;  // clock_ at the last capture or replay
    std::unique_ptr<Executable> executable;
  };
  const Variant* find(ShapeKey key) const;
  Variant* find(ShapeKey key) { return const_cast<Variant*>(std::as_const(*this).find(key)); }
  Status no_variant(ShapeKey key) const;

  std::string name_;
  size_t bound_;
  uint64_t clock_ = 0;
  std::vector<Variant> variants_;  // by key
};

}  // namespace vivace::exec
