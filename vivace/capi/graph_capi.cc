// Graph and plan of the C ABI.
#include <algorithm>
#include <string>
#include <utility>

#include "vivace/capi/guard.h"
#include "vivace/capi/handles.h"
#include "vivace/exec/cuda_stream.h"

using vivace::Code;
using vivace::Status;
using vivace::capi::guard;
using vivace::exec::ShapeKey;

namespace {

namespace capi = vivace::capi;
namespace exec = vivace::exec;

constexpr size_t kInfoV1 = sizeof(vv_graph_info);

}  // namespace

extern "C" {

vv_status vv_graph_create(const char* name, size_t bound, vv_graph** out) {
  return guard("vv_graph_create", [&]() -> Status {
    VV_NOT_NULL(name);
    VV_NOT_NULL(out);
    if (bound == 0)
      return Status(Code::kInvalidArgument, std::string("graph ") + name + ": bound is 0: it could hold no variant");
    *out = new vv_graph{{}, std::make_shared<exec::Graph>(name, bound)};
    return {};
  }, out);
}

vv_status vv_graph_capture(vv_graph* graph, vv_shape_key key, vv_stream* stream, vv_capture_fn fn, void* context) {
  return guard("vv_graph_capture", [&]() -> Status {
    VV_NOT_NULL(graph);
    VV_NOT_NULL(stream);
    VV_NOT_NULL(fn);
    capi::clear_error();
    return graph->graph->capture(ShapeKey{key}, *stream->rep->stream, [&](exec::Stream&) {
      return capi::contained([&] { return capi::from_callback(fn(stream, context)); });
    });
  });
}

vv_status vv_graph_adopt_cuda(vv_graph* graph, vv_shape_key key, vv_stream* stream, void* cu_graph_exec, int owned) {
  return guard("vv_graph_adopt_cuda", [&]() -> Status {
    VV_NOT_NULL(graph);
    VV_NOT_NULL(stream);
    VV_NOT_NULL(cu_graph_exec);
    const capi::BackendRep& owner = *stream->rep->owner;
    if (owner.device == nullptr)
      return Status(Code::kUnsupported,
                    std::string("the stream is of a ") + owner.backend->name() + " backend, which runs no CUgraphExec");
    VV_TRY(graph->graph->admit(ShapeKey{key}));
    VV_ASSIGN(std::unique_ptr<exec::Executable> executable,
              exec::adopt_cuda_graph(*owner.device, static_cast<vivace::cu::GraphExec>(cu_graph_exec), owned != 0));
    return graph->graph->adopt(ShapeKey{key}, std::move(executable));
  });
}

vv_status vv_graph_replay(vv_graph* graph, vv_shape_key key, vv_stream* stream) {
  return guard("vv_graph_replay", [&]() -> Status {
    VV_NOT_NULL(graph);
    VV_NOT_NULL(stream);
    return graph->graph->replay(ShapeKey{key}, *stream->rep->stream);
  });
}

vv_status vv_graph_pin(vv_graph* graph, vv_shape_key key) {
  return guard("vv_graph_pin", [&]() -> Status {
    VV_NOT_NULL(graph);
    return graph->graph->pin(ShapeKey{key});
  });
}

vv_status vv_graph_unpin(vv_graph* graph, vv_shape_key key) {
  return guard("vv_graph_unpin", [&]() -> Status {
    VV_NOT_NULL(graph);
    return graph->graph->unpin(ShapeKey{key});
  });
}

vv_status vv_graph_evict(vv_graph* graph, vv_shape_key key) {
  return guard("vv_graph_evict", [&]() -> Status {
    VV_NOT_NULL(graph);
    return graph->graph->evict(ShapeKey{key});
  });
}

vv_status vv_graph_evict_lru(vv_graph* graph, vv_shape_key* evicted) {
  return guard("vv_graph_evict_lru", [&]() -> Status {
    VV_NOT_NULL(graph);
    VV_ASSIGN(const ShapeKey key, graph->graph->evict_lru());
    if (evicted != nullptr) *evicted = key.value;
    return {};
  }, evicted);
}

int vv_graph_has(const vv_graph* graph, vv_shape_key key) {
  return capi::usable(graph) && graph->graph->has(ShapeKey{key}) ? 1 : 0;
}

vv_status vv_graph_get_keys(const vv_graph* graph, vv_shape_key* keys, size_t capacity, size_t* count) {
  return guard("vv_graph_get_keys", [&]() -> Status {
    VV_NOT_NULL(graph);
    VV_NOT_NULL(count);
    if (capacity != 0) {
      VV_NOT_NULL(keys);
    }
    const auto all = graph->graph->keys();
    for (size_t i = 0; i < std::min(capacity, all.size()); ++i) keys[i] = all[i].value;
    *count = all.size();
    return {};
  }, count);
}

vv_status vv_graph_get_info(const vv_graph* graph, vv_graph_info* info) {
  return guard("vv_graph_get_info", [&]() -> Status {
    VV_NOT_NULL(graph);
    const exec::Graph& g = *graph->graph;
    return capi::write_struct({sizeof(vv_graph_info), g.name().c_str(), g.bound(), g.size()}, kInfoV1, info);
  }, capi::Filled<vv_graph_info>{info, kInfoV1});
}
void vv_graph_destroy(vv_graph* graph) { vivace::capi::destroy(graph); }

vv_status vv_plan_create(vv_backend* backend, const char* name, vv_plan** out) {
  return guard("vv_plan_create", [&]() -> Status {
    VV_NOT_NULL(backend);
    VV_NOT_NULL(name);
    VV_NOT_NULL(out);
    *out = new vv_plan{{}, backend->rep, {}, {}, std::make_unique<exec::Plan>(name, *backend->rep->backend)};
    return {};
  }, out);
}

vv_status vv_plan_add(vv_plan* plan, vv_graph* graph, vv_shape_key key, vv_stream* stream, int* step) {
  return guard("vv_plan_add", [&]() -> Status {
    VV_NOT_NULL(plan);
    VV_NOT_NULL(graph);
    VV_NOT_NULL(stream);
    VV_NOT_NULL(step);
    plan->graphs.push_back(graph->graph);  // kept even if add() refuses: harmless, and simpler than undoing
    plan->streams.push_back(stream->rep);
    VV_ASSIGN(*step, plan->plan->add(*graph->graph, ShapeKey{key}, *stream->rep->stream));
    return {};
  }, step);
}

vv_status vv_plan_edge(vv_plan* plan, int from, int to) {
  return guard("vv_plan_edge", [&]() -> Status {
    VV_NOT_NULL(plan);
    return plan->plan->edge(from, to);
  });
}

vv_status vv_plan_freeze(vv_plan* plan) {
  return guard("vv_plan_freeze", [&]() -> Status {
    VV_NOT_NULL(plan);
    return plan->plan->freeze();
  });
}

vv_status vv_plan_run(vv_plan* plan) {
  return guard("vv_plan_run", [&]() -> Status {
    VV_NOT_NULL(plan);
    return plan->plan->run();
  });
}

vv_status vv_plan_synchronize(vv_plan* plan) {
  return guard("vv_plan_synchronize", [&]() -> Status {
    VV_NOT_NULL(plan);
    return plan->plan->synchronize();
  });
}
void vv_plan_destroy(vv_plan* plan) { vivace::capi::destroy(plan); }

}  // extern "C"
