#include "vivace/exec/plan.h"

#include <algorithm>
#include <utility>

#include "vivace/base/check.h"

namespace vivace::exec {

Plan::Plan(std::string name, Backend& backend) : name_(std::move(name)), backend_(backend) {}

Plan::~Plan() { unpin_all(); }

void Plan::unpin_all() {
  for (; pinned_ > 0; --pinned_) static_cast<void>(nodes_[pinned_ - 1].graph->unpin(nodes_[pinned_ - 1].key));
}

Status Plan::failed(const char* call, Code code, const std::string& why) const {
  return Status(code, "plan " + name_ + ": " + call + ": " + why);
}

std::string Plan::describe(Step step) const {
  const Node& n = nodes_[static_cast<size_t>(step)];
  return strf("%d (graph %s, key 0x%llx)", step, n.graph->name().c_str(), static_cast<unsigned long long>(n.key.value));
}

Result<Plan::Step> Plan::add(Graph& graph, ShapeKey key, Stream& stream) {
  if (frozen_) return failed("add", Code::kFailedPrecondition, "the plan is frozen");
  VV_TRY(graph.pin(key).with_context("plan " + name_ + ": add"));  // looks the key up, with its error
  VV_TRY(graph.unpin(key));
  nodes_.push_back({&graph, key, &stream, {}, {}});
  return static_cast<Step>(nodes_.size()) - 1;
}

/// Depth first over edges and over the order within streams, from `from` forward. `path` gets the
/// steps from `from` to `to`.
bool Plan::reaches(Step from, Step to, std::vector<Step>* path) const {
  std::vector<Step> parent(nodes_.size(), -1), todo{from};
  parent[static_cast<size_t>(from)] = from;
  while (!todo.empty()) {
    const Step at = todo.back();
    todo.pop_back();
    if (at == to) {
      for (Step s = to; s != from; s = parent[static_cast<size_t>(s)]) path->push_back(s);
      path->push_back(from);
      std::reverse(path->begin(), path->end());
      return true;
    }
    for (Step next = 0; next < static_cast<Step>(nodes_.size()); ++next) {
      const Node& n = nodes_[static_cast<size_t>(next)];
      const bool follows = next > at && n.stream == nodes_[static_cast<size_t>(at)].stream;
      const bool edge = std::find(n.before.begin(), n.before.end(), at) != n.before.end();
      if ((!follows && !edge) || parent[static_cast<size_t>(next)] >= 0) continue;
      parent[static_cast<size_t>(next)] = at;
      todo.push_back(next);
    }
  }
  return false;
}

Status Plan::edge(Step from, Step to) {
  if (frozen_) return failed("edge", Code::kFailedPrecondition, "the plan is frozen");
  for (Step s : {from, to})
    if (s < 0 || s >= static_cast<Step>(nodes_.size()))
      return failed("edge", Code::kInvalidArgument, strf("no step %d; the plan has %zu", s, nodes_.size()));
  Node& n = nodes_[static_cast<size_t>(to)];
  if (nodes_[static_cast<size_t>(from)].stream == n.stream)
    return failed(
        "edge", Code::kInvalidArgument,
        "steps " + describe(from) + " and " + describe(to) + " are on one stream, which orders them as added");
  std::vector<Step> path;
  if (reaches(to, from, &path)) {
    std::string cycle = describe(from);
    for (Step s : path) cycle += " -> " + describe(s);
    return failed("edge", Code::kInvalidArgument, "it would close a cycle: " + cycle);
  }
  if (std::find(n.before.begin(), n.before.end(), from) == n.before.end()) n.before.push_back(from);
  return {};
}

Status Plan::pin_all() {
  for (; pinned_ < nodes_.size(); ++pinned_) {
    Node& n = nodes_[pinned_];
    VV_TRY(n.graph->pin(n.key).with_context("plan " + name_ + ": freeze"));
    n.executable = n.graph->executable(n.key);
  }
  return {};
}

/// Lowest step first among those whose predecessors are out: deterministic, and the order of add()
/// where nothing speaks against it.
Status Plan::make_order() {
  std::vector<bool> out(nodes_.size(), false);
  order_.clear();
  while (order_.size() < nodes_.size()) {
    const size_t before = order_.size();
    for (size_t i = 0; i < nodes_.size() && order_.size() == before; ++i) {
      const Node& n = nodes_[i];
      bool ready =
          !out[i] && std::all_of(n.before.begin(), n.before.end(), [&](Step s) { return out[static_cast<size_t>(s)]; });
      for (size_t j = 0; j < i; ++j) ready = ready && (nodes_[j].stream != n.stream || out[j]);
      if (!ready) continue;
      out[i] = true;
      order_.push_back(static_cast<Step>(i));
    }
    if (order_.size() == before) return failed("freeze", Code::kInternal, "a cycle that edge() let through");
  }
  return {};
}

Result<Event*> Plan::done_event(Step step) {
  Node& n = nodes_[static_cast<size_t>(step)];
  if (n.done == nullptr) {
    VV_ASSIGN(std::unique_ptr<Event> event, backend_.make_event());
    n.done = event.get();
    events_.push_back(std::move(event));
  }
  return n.done;
}

Status Plan::make_events() {
  std::vector<Step> last;  // of each of streams_
  streams_.clear();
  joins_.clear();
  for (size_t i = 0; i < nodes_.size(); ++i) {
    const size_t s =
        static_cast<size_t>(std::find(streams_.begin(), streams_.end(), nodes_[i].stream) - streams_.begin());
    if (s == streams_.size()) {
      streams_.push_back(nodes_[i].stream);
      last.push_back(0);
    }
    last[s] = static_cast<Step>(i);
  }
  for (Node& n : nodes_) {
    n.waits.clear();
    for (Step from : n.before) {
      VV_ASSIGN(Event* done, done_event(from));
      n.waits.push_back(done);
    }
  }
  for (size_t s = 0; s < streams_.size(); ++s)
    for (size_t other = 0; other < streams_.size(); ++other) {
      if (other == s) continue;
      VV_ASSIGN(Event* done, done_event(last[other]));
      joins_.push_back({streams_[s], done});
    }
  return {};
}

Status Plan::freeze() {
  if (frozen_) return failed("freeze", Code::kFailedPrecondition, "the plan is frozen");
  if (nodes_.empty()) return failed("freeze", Code::kFailedPrecondition, "the plan has no step");
  Status s = pin_all();
  if (s.ok()) s = make_order();
  if (s.ok()) s = make_events();
  if (!s.ok()) unpin_all();
  frozen_ = s.ok();
  return s;
}

Status Plan::issue() {
  // In the first run these events were never recorded, and waiting for them is no wait.
  for (const Join& j : joins_) VV_TRY(j.stream->wait(*j.event));
  for (Step step : order_) {
    const Node& n = nodes_[static_cast<size_t>(step)];
    for (Event* e : n.waits) VV_TRY(n.stream->wait(*e));
    if (Status s = n.stream->replay(*n.executable); !s.ok())
      return std::move(s).with_context("plan " + name_ + ": step " + describe(step));
    if (n.done != nullptr) VV_TRY(n.stream->record(*n.done));
  }
  return {};
}

Status Plan::run() {
  if (!frozen_) [[unlikely]] return failed("run", Code::kFailedPrecondition, "freeze() the plan first");
  Status s = issue();
  if (!s.ok()) [[unlikely]] static_cast<void>(synchronize());  // the first error is the one to report
  return s;
}

Status Plan::synchronize() {
  Status first;
  for (Stream* stream : streams_)
    if (Status s = stream->synchronize(); !s.ok() && first.ok()) first = std::move(s);
  return first;
}

}  // namespace vivace::exec
