#include "vivace/device/graph.h"

namespace vivace::device {
namespace {

// CUgraphExecUpdateResult.
const char* update_text(int result) {
  switch (result) {
    case 2: return "the topology changed";
    case 3: return "a node's type changed";
    case 4: return "a kernel changed";
    case 5: return "parameters changed in a way that cannot be updated";
    case 6: return "a node's kind cannot be updated";
    case 7: return "a kernel changed in a way that cannot be updated";
    case 8: return "a node's attributes changed";
    default: return "unknown cause";
  }
}

}  // namespace

CapturedGraph::~CapturedGraph() {
  if (handle_ != nullptr) VV_CU_IGNORE(cuGraphDestroy, handle_);
}

Result<size_t> CapturedGraph::node_count() const {
  size_t count = 0;
  VV_CU(cuGraphGetNodes, handle_, nullptr, &count);
  return count;
}

Result<GraphExec> CapturedGraph::instantiate() const {
  cu::GraphExec exec = nullptr;
  VV_CU(cuGraphInstantiateWithFlags, &exec, handle_, 0ull);
  return GraphExec::adopt(exec, true);
}

GraphExec GraphExec::adopt(cu::GraphExec handle, bool owned) {
  GraphExec e;
  e.handle_ = handle;
  e.owned_ = owned;
  return e;
}

GraphExec::~GraphExec() {
  if (owned_ && handle_ != nullptr) VV_CU_IGNORE(cuGraphExecDestroy, handle_);
}

Status GraphExec::launch(Stream& stream) const {
  VV_CU(cuGraphLaunch, handle_, stream.handle());
  return Status();
}

Status GraphExec::upload(Stream& stream) const {
  VV_CU(cuGraphUpload, handle_, stream.handle());
  return Status();
}

Status GraphExec::update(const CapturedGraph& graph) {
  cu::GraphUpdateInfo info;
  Status s = VV_CU_STATUS(cuGraphExecUpdate_v2, handle_, graph.handle(), &info);
  if (s.ok() || !healthy()) return s;
  return Status(Code::kFailedPrecondition, strf("the graph cannot be updated: %s; instantiate a new one (%s)",
                                                update_text(info.result), s.message().c_str()));
}

Status begin_capture(Stream& stream) {
  VV_CU(cuStreamBeginCapture_v2, stream.handle(), cu::kCaptureThreadLocal);
  return Status();
}

Result<CapturedGraph> end_capture(Stream& stream) {
  CapturedGraph g;
  VV_CU(cuStreamEndCapture, stream.handle(), &g.handle_);
  return g;
}

Result<bool> is_capturing(const Stream& stream) {
  int status = cu::kCaptureNone;
  VV_CU(cuStreamIsCapturing, stream.handle(), &status);
  return status != cu::kCaptureNone;
}

}  // namespace vivace::device
