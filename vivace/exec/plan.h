// Plan: a DAG of graph replays over streams, frozen before it runs.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "vivace/exec/backend.h"
#include "vivace/exec/graph.h"

namespace vivace::exec {

/// Steps on one stream run in the order of add(); across streams only edges order them. Runs of one
/// plan do not overlap: every stream first waits for all of the run before, so that a late stage may
/// read what an early stage overwrites next time.
///
/// Graphs, streams and backend must outlive the plan. From freeze() on it holds a pin on each variant.
/// Not thread-safe: one thread at a time.
class Plan {
 public:
  using Step = int;  // from add(), counting from 0

  Plan(std::string name, Backend& backend);
  ~Plan();
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  /// Errors: NoVariant (capture first), FailedPrecondition after freeze().
  Result<Step> add(Graph& graph, ShapeKey key, Stream& stream);
  /// `to` starts when `from` is done. Errors: InvalidArgument for unknown steps, for two steps of
  /// one stream (their order is that of add()) and for an edge that would close a cycle, which it
  /// prints; FailedPrecondition after freeze().
  Status edge(Step from, Step to);
  /// Fixes the order of issue, pins the variants and makes the events. Errors: FailedPrecondition
  /// when frozen or empty, NoVariant if a variant has gone since add().
  Status freeze();
  bool frozen() const { return frozen_; }

  /// Issues every step; never allocates. On an error the rest is not issued, and run() waits for what
  /// was, so that the plan may run again. Errors: FailedPrecondition before freeze(), a step's own.
  Status run();
  /// Blocks the host until everything that run() issued is done.
  Status synchronize();

  size_t steps() const { return nodes_.size(); }
  const std::string& name() const { return name_; }

 private:
  struct Node {
    Graph* graph;
    ShapeKey key;
    Stream* stream;
    std::vector<Step> before;  // edges into this step
    std::vector<Event*> waits;
    Event* done = nullptr;     // recorded after this step, where somebody waits for it
    Executable* executable = nullptr;
  };
  struct Join {
    Stream* stream;
    Event* event;
  };
  bool reaches(Step from, Step to, std::vector<Step>* path) const;
  Result<Event*> done_event(Step step);
  Status pin_all();
  Status make_order();
  Status make_events();
  Status issue();
  void unpin_all();
  Status failed(const char* call, Code code, const std::string& why) const;
  std::string describe(Step step) const;

  std::string name_;
  Backend& backend_;
  std::vector<Node> nodes_;
  std::vector<Step> order_;
  std::vector<Stream*> streams_;
  std::vector<Join> joins_;  // each stream with the last event of each other one
  std::vector<std::unique_ptr<Event>> events_;
  size_t pinned_ = 0;  // nodes [0, pinned_) hold a pin
  bool frozen_ = false;
};

}  // namespace vivace::exec
