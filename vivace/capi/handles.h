// What the opaque handles hold. Shared parts keep alive what a dependent handle still needs, so that C
// callers may destroy in any order.
#pragma once
#include <memory>
#include <vector>

#include "vivace/capi/tagged.h"
#include "vivace/capi/vivace.h"
#include "vivace/cpu/pool.h"
#include "vivace/exec/plan.h"

namespace vivace::device {
class Device;
}

namespace vivace::capi {

struct BackendRep {
  std::unique_ptr<cpu::Pool> pool;          // cpu
  const device::Device* device = nullptr;   // cuda; lives as long as the process
  std::unique_ptr<exec::Backend> backend;
};

struct StreamRep {
  std::shared_ptr<BackendRep> owner;
  std::unique_ptr<exec::Stream> stream;
};

}  // namespace vivace::capi

struct vv_backend : vivace::capi::Tagged<vivace::capi::Kind::backend> {
  std::shared_ptr<vivace::capi::BackendRep> rep;
};
struct vv_stream : vivace::capi::Tagged<vivace::capi::Kind::stream> {
  std::shared_ptr<vivace::capi::StreamRep> rep;
};
struct vv_event : vivace::capi::Tagged<vivace::capi::Kind::event> {
  std::shared_ptr<vivace::capi::BackendRep> owner;
  std::unique_ptr<vivace::exec::Event> event;
};
struct vv_buffer : vivace::capi::Tagged<vivace::capi::Kind::buffer> {
  std::shared_ptr<vivace::capi::BackendRep> owner;  // empty for wrapped memory
  vivace::exec::Buffer buffer;
};
struct vv_graph : vivace::capi::Tagged<vivace::capi::Kind::graph> {
  std::shared_ptr<vivace::exec::Graph> graph;
};
struct vv_plan : vivace::capi::Tagged<vivace::capi::Kind::plan> {
  std::shared_ptr<vivace::capi::BackendRep> owner;
  std::vector<std::shared_ptr<vivace::exec::Graph>> graphs;
  std::vector<std::shared_ptr<vivace::capi::StreamRep>> streams;
  std::unique_ptr<vivace::exec::Plan> plan;  // last: it unpins in the graphs
};
