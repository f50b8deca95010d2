// Capture and CUDA graphs: what exec's backend records, instantiates, updates and launches.
#pragma once
#include "vivace/device/stream.h"

namespace vivace::device {

class GraphExec;

/// Recorded work, not yet executable. Move-only.
class CapturedGraph {
 public:
  CapturedGraph() = default;
  CapturedGraph(CapturedGraph&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)) {}
  CapturedGraph& operator=(CapturedGraph&& o) noexcept { std::swap(handle_, o.handle_); return *this; }
  ~CapturedGraph();

  cu::Graph handle() const { return handle_; }
  Result<size_t> node_count() const;
  Result<GraphExec> instantiate() const;

 private:
  friend Result<CapturedGraph> end_capture(Stream& stream);
  cu::Graph handle_ = nullptr;
};

/// An executable graph. Move-only. It holds addresses: the memory it names must outlive it.
class GraphExec {
 public:
  GraphExec() = default;
  /// A graph that others instantiated. `owned`: destroyed here, else left to them.
  static GraphExec adopt(cu::GraphExec handle, bool owned);
  GraphExec(GraphExec&& o) noexcept : handle_(std::exchange(o.handle_, nullptr)), owned_(o.owned_) {}
  GraphExec& operator=(GraphExec&& o) noexcept {
    std::swap(handle_, o.handle_);
    std::swap(owned_, o.owned_);
    return *this;
  }
  ~GraphExec();

  cu::GraphExec handle() const { return handle_; }
  /// Never allocates.
  Status launch(Stream& stream) const;
  /// Moves the graph to the device, so that the first launch does not.
  Status upload(Stream& stream) const;
  /// Replaces arguments by those of a graph of the same topology. Errors: FailedPrecondition says
  /// what differs; the executable is then unchanged.
  Status update(const CapturedGraph& graph);

 private:
  cu::GraphExec handle_ = nullptr;
  bool owned_ = true;
};

/// Starts recording `stream`. Calls that would synchronise, on this thread, fail until end_capture();
/// other threads are not disturbed. Streams that wait for an event of this one join the capture.
Status begin_capture(Stream& stream);
/// Ends it, also after an error, which it then returns.
Result<CapturedGraph> end_capture(Stream& stream);
Result<bool> is_capturing(const Stream& stream);

}  // namespace vivace::device
