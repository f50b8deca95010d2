#include "vivace/exec/cuda_stream.h"

#include <utility>

#include "vivace/device/cuda_memory.h"
#include "vivace/device/graph.h"
#include "vivace/device/kernel.h"
#include "vivace/exec/cuda_gate.h"

namespace vivace::exec {
namespace {

class CudaExecutable final : public Executable {
 public:
  CudaExecutable(const device::Device& device, cu::GraphExec exec, bool owned, size_t launches,
                 std::vector<device::CapturedLaunch> captured = {})
      : device_(device), exec_(exec), owned_(owned), launches_(launches), captured_(std::move(captured)) {}
  /// A graph that is running is freed by the driver once it is done.
  ~CudaExecutable() override {
    if (!owned_ || !device_.bind().ok()) return;
    VV_CU_IGNORE(cuGraphExecDestroy, exec_);
  }
  CudaExecutable(const CudaExecutable&) = delete;
  CudaExecutable& operator=(const CudaExecutable&) = delete;
  size_t launches() const override { return launches_; }
  const device::Device& device() const { return device_; }
  cu::GraphExec exec() const { return exec_; }
  const std::vector<device::CapturedLaunch>& captured() const { return captured_; }

 private:
  const device::Device& device_;
  cu::GraphExec exec_;
  bool owned_;
  size_t launches_;
  std::vector<device::CapturedLaunch> captured_;
};

struct CapturedGraph {
  cu::Graph handle = nullptr;
  ~CapturedGraph() {
    if (handle != nullptr) VV_CU_IGNORE(cuGraphDestroy, handle);
  }
};

/// `object` as this backend's type T on this device, or nullptr.
template <class T, class Base>
T* mine(Base& object, const device::Device& device) {
  T* const t = dynamic_cast<T*>(&object);
  return t != nullptr && &t->device() == &device ? t : nullptr;
}

Status foreign(const char* call, const char* what, const device::Device& device) {
  return Status(Code::kInvalidArgument, strf("cuda stream: %s: the %s comes from another backend than cuda:%d", call,
                                             what, device.info().ordinal));
}

constexpr const char* kNoEvents = "the stream is capturing; order graphs with a Plan";

}  // namespace

CudaStream::~CudaStream() {
  if (capturing_) static_cast<void>(end_capture());  // a borrowed handle must not stay capturing
}

Status CudaStream::check_awake(const char* call) const {
  if (memory_ == nullptr || !memory_->asleep()) return {};
  return Status(Code::kFailedPrecondition,
                strf("cuda stream: %s: its model sleeps, its memory is on the host; wake it first", call));
}

Status CudaStream::launch(const Launch& launch) {
  VV_TRY(check_awake("launch"));
  if (launch.kernel == nullptr)
    return Status(
        Code::kInvalidArgument,
        strf("cuda stream: launch of %s: it has no CUDA kernel, so it was prepared for another backend", launch.op));
  if (launch.kernel->device != &dev())
    return Status(Code::kInvalidDevice,
                  strf("cuda stream: launch of %s: its kernel is loaded on cuda:%d, the stream is on cuda:%d",
                       launch.op, launch.kernel->device->info().ordinal, dev().info().ordinal));
  VV_TRY(dev().bind());
  const bool behind_gate = std::exchange(behind_gate_, false);
  const device::LaunchShape shape = {.grid = {launch.grid[0], launch.grid[1], launch.grid[2]},
                                     .block = {launch.block[0], launch.block[1], launch.block[2]},
                                     .smem_bytes = launch.smem_bytes,
                                     .cluster = {launch.cluster, 1, 1},
                                     .pdl = launch.pdl && !behind_gate,
                                     .cooperative = launch.cooperative};
  if (capturing_) captured_.push_back({launch.op, launch.kernel, launch.bytes, launch.flops});
  else device::count(device::stream_counts(dev().info().ordinal, handle()).launches);
  const device::Observed seen([&] {
    return device::Work{.op = launch.op,
                        .kernel = launch.kernel->name,
                        .bytes = launch.bytes,
                        .flops = launch.flops,
                        .device = &dev(),
                        .stream = handle(),
                        .captured = capturing_};
  });
  return device::launch(*launch.kernel, shape, handle(), launch.args, launch.args_bytes);
}

Status CudaStream::copy(void* to, const void* from, size_t bytes) {
  VV_TRY(check_copy("cuda", to, from, bytes));
  VV_TRY(check_awake("copy"));
  if (bytes == 0) return {};
  VV_TRY(dev().bind());
  const device::Observed seen([&] {
    return device::Work{.kind = device::Work::copy,
                        .op = "copy",
                        .bytes = 2 * static_cast<int64_t>(bytes),
                        .device = &dev(),
                        .stream = handle(),
                        .captured = capturing_};
  });
  return stream_.copy(to, from, bytes);
}

Result<bool> CudaStream::in_capture() const { return device::is_capturing(stream_); }

Status CudaStream::begin_capture() {
  if (capturing_) return wrong_time("cuda", "begin_capture", "already capturing; end_capture() first");
  VV_TRY(dev().bind());
  // Thread-local: an allocation or a load on this thread is refused, other threads go on undisturbed.
  VV_CU(cuStreamBeginCapture_v2, handle(), cu::kCaptureThreadLocal);
  capturing_ = true;
  captured_.clear();
  return {};
}

Result<std::unique_ptr<Executable>> CudaStream::end_capture() {
  if (!capturing_) return wrong_time("cuda", "end_capture", "not capturing; begin_capture() first");
  capturing_ = false;
  VV_TRY(dev().bind());
  CapturedGraph graph;
  VV_CU(cuStreamEndCapture, handle(), &graph.handle);
  size_t nodes = 0;
  VV_CU(cuGraphGetNodes, graph.handle, nullptr, &nodes);
  cu::GraphExec exec = nullptr;
  VV_CU(cuGraphInstantiateWithFlags, &exec, graph.handle, 0ull);
  auto executable = std::make_unique<CudaExecutable>(dev(), exec, true, nodes, std::move(captured_));
  VV_CU(cuGraphUpload, exec, handle());  // so that the first replay costs what the others cost
  return std::unique_ptr<Executable>(std::move(executable));
}

Status CudaStream::replay(Executable& executable) {
  if (capturing_) return wrong_time("cuda", "replay", "the stream is capturing, and a capture cannot hold a replay");
  const auto* e = mine<CudaExecutable>(executable, dev());
  if (e == nullptr) return foreign("replay", "executable", dev());
  VV_TRY(check_awake("replay"));
  VV_TRY(dev().bind());
  device::count(device::stream_counts(dev().info().ordinal, handle()).replays);
  const device::Observed seen([&] {
    device::Work w{.kind = device::Work::replay, .op = "graph", .device = &dev(), .stream = handle()};
    w.inside = e->captured();
    for (const device::CapturedLaunch& l : w.inside) w.bytes += l.bytes, w.flops += l.flops;
    return w;
  });
  VV_CU(cuGraphLaunch, e->exec(), handle());
  return {};
}

Status CudaStream::record(Event& event) {
  if (capturing_) return wrong_time("cuda", "record", kNoEvents);
  auto* e = mine<CudaEvent>(event, dev());
  if (e == nullptr) return foreign("record", "event", dev());
  VV_TRY(dev().bind());
  return e->event().record(handle());
}

Status CudaStream::wait(Event& event) {
  if (capturing_) return wrong_time("cuda", "wait", kNoEvents);
  auto* e = mine<CudaEvent>(event, dev());
  if (e == nullptr) return foreign("wait", "event", dev());
  VV_TRY(dev().bind());
  return stream_.wait(e->event());
}

Status CudaStream::pass(Gate& gate, uint32_t mask) {
  const auto* g = mine<CudaGate>(gate, dev());
  if (g == nullptr) return foreign("pass", "gate", dev());
  VV_TRY(check_mask("cuda", gate, mask));
  VV_TRY(dev().bind());
  behind_gate_ = true;
  return g->queue_pass(handle(), mask);
}

Status CudaStream::set(Gate& gate, int word, bool shut) {
  const auto* g = mine<CudaGate>(gate, dev());
  if (g == nullptr) return foreign("set", "gate", dev());
  VV_TRY(check_word("cuda", "set", gate, word, false));
  VV_TRY(dev().bind());
  return g->queue_set(handle(), word, shut);
}

Status CudaStream::synchronize() {
  if (capturing_) return wrong_time("cuda", "synchronize", "the stream is capturing, nothing has run");
  VV_TRY(dev().bind());
  return stream_.synchronize();
}

Status CudaEvent::synchronize() {
  VV_TRY(device_.bind());
  return event_.synchronize();
}

Result<std::unique_ptr<Executable>> adopt_cuda_graph(const device::Device& device, cu::GraphExec exec, bool owned,
                                                     size_t launches) {
  if (exec == nullptr) return Status(Code::kInvalidArgument, "adopt_cuda_graph: null CUgraphExec");
  return std::unique_ptr<Executable>(std::make_unique<CudaExecutable>(device, exec, owned, launches));
}

CudaBackend::CudaBackend(const device::Device& device, device::Stream fills)
    : device_(device), name_(strf("cuda:%d", device.info().ordinal)), fills_(std::move(fills)) {}

Result<std::unique_ptr<CudaBackend>> CudaBackend::create(const device::Device& device) {
  VV_ASSIGN(device::Stream fills, device::Stream::create(device));
  return std::unique_ptr<CudaBackend>(new CudaBackend(device, std::move(fills)));
}

Result<std::unique_ptr<Stream>> CudaBackend::make_stream(int level) {
  VV_ASSIGN(device::Stream stream, device::Stream::create(device_, level));
  device::stream_counts(device_.info().ordinal, stream.handle());  // the row is there before the first replay
  return std::unique_ptr<Stream>(std::make_unique<CudaStream>(std::move(stream)));
}

Result<std::unique_ptr<Event>> CudaBackend::make_event() {
  VV_ASSIGN(device::Event event, device::Event::create(device_));
  return std::unique_ptr<Event>(std::make_unique<CudaEvent>(device_, std::move(event)));
}

Result<std::unique_ptr<Gate>> CudaBackend::make_gate(int stream_words, int host_words) {
  VV_ASSIGN(std::unique_ptr<CudaGate> gate, CudaGate::create(device_, stream_words, host_words));
  return std::unique_ptr<Gate>(std::move(gate));
}

Result<Buffer> CudaBackend::make_buffer(std::string name, size_t bytes) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "buffer " + name + ": 0 bytes");
  VV_TRY(device_.bind());
  VV_ASSIGN(device::Pool* const pool, device::shared_pool(device_));
  VV_ASSIGN(device::Block* const block, pool->allocate({.bytes = bytes,
                                                        .stream = reinterpret_cast<device::StreamId>(fills_.handle()),
                                                        .name = "buffer " + name}));
  void* const data = block->data();
  struct Held {
    const device::Device* device;
    device::Pool* pool;
    device::Block* block;
  };
  // Any stream may have used it last, so all are waited for; a block that cannot be given back stays the pool's loss.
  Buffer buffer(std::move(name), data, bytes, Place::device, [](void*, size_t, void* context) {
    const std::unique_ptr<Held> h(static_cast<Held*>(context));
    constexpr device::StreamId kLegacy = 1;
    if (h->device->synchronize().ok()) static_cast<void>(h->pool->free(h->block, kLegacy));
  }, new Held{&device_, pool, block});
  VV_TRY(fills_.fill(data, 0, bytes));
  VV_TRY(fills_.synchronize());
  return buffer;
}

Result<Buffer> CudaBackend::make_buffer(std::string name, size_t bytes, std::shared_ptr<device::Residence> memory) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "buffer " + name + ": 0 bytes");
  VV_TRY(device_.bind());
  VV_ASSIGN(device::Block* const block,
            memory->allocate("buffer " + name, bytes, reinterpret_cast<device::StreamId>(fills_.handle())));
  void* const data = block->data();
  struct Held {
    const device::Device* device;
    std::shared_ptr<device::Residence> memory;
    device::Block* block;
  };
  Buffer buffer(std::move(name), data, bytes, Place::device, [](void*, size_t, void* context) {
    const std::unique_ptr<Held> h(static_cast<Held*>(context));
    if (h->device->bind().ok()) static_cast<void>(h->memory->free(h->block));
  }, new Held{&device_, std::move(memory), block});
  VV_TRY(fills_.fill(data, 0, bytes));
  VV_TRY(fills_.synchronize());
  return buffer;
}

}  // namespace vivace::exec
