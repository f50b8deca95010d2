#include "vivace/exec/cpu_stream.h"

#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/device/activity.h"
#include "vivace/exec/cpu_gate.h"

namespace vivace::exec {
namespace {

constexpr size_t kAlign = 256;  // of buffers; also what a device allocation gives

constexpr int kCpu = -1;  // in counts of streams

device::Work work_of(const char* op, int64_t bytes, int64_t flops) {
  return {.kind = std::string_view(op) == "copy" ? device::Work::copy : device::Work::launch,
          .op = op,
          .bytes = bytes,
          .flops = flops};
}

/// A captured pass or set: a step like any other.
struct GateArgs {
  CpuGate* gate;
  uint32_t mask;  // of a set: the word's number
  bool shut;
};

Status foreign(const char* call, const char* what) {
  return Status(Code::kInvalidArgument, strf("cpu stream: %s: the %s comes from another backend", call, what));
}

}  // namespace

/// Steps in order, and their arguments in one aligned block: replay walks both forward, reads
/// nothing else and writes nothing here.
class CpuExecutable final : public Executable {
 public:
  CpuExecutable() {
    steps_.reserve(512);
    args_.reserve(1024);
  }

  void add(const Launch& launch) {
    const size_t at = args_.size();
    args_.resize(at + (launch.args_bytes + sizeof(Line) - 1) / sizeof(Line));
    if (launch.args_bytes != 0) std::memcpy(args_.data() + at, launch.args, launch.args_bytes);
    steps_.push_back({launch.host, nullptr, nullptr, at});
    captured_.push_back({launch.op, nullptr, launch.bytes, launch.flops});
  }
  void add_copy(void* to, const void* from, size_t bytes) {
    steps_.push_back({nullptr, to, from, bytes});
    captured_.push_back({"copy", nullptr, 2 * static_cast<int64_t>(bytes), 0});
  }
  void finish() {
    captured_.shrink_to_fit();
    steps_.shrink_to_fit();
    args_.shrink_to_fit();
  }

  size_t launches() const override { return steps_.size(); }

  void run(cpu::Pool& pool) const {
    if (device::observer() != nullptr) [[unlikely]] return run_observed(pool);
    for (const Step& s : steps_) run(s, pool);
  }

 private:
  struct Step;
  void run(const Step& s, cpu::Pool& pool) const {
    if (s.host != nullptr) s.host(args_.data() + s.size, pool);
    else std::memcpy(s.to, s.from, s.size);
  }
  void run_observed(cpu::Pool& pool) const {
    for (size_t i = 0; i < steps_.size(); ++i) {
      const device::Observed seen([&] { return work_of(captured_[i].op, captured_[i].bytes, captured_[i].flops); });
      run(steps_[i], pool);
    }
  }
  struct alignas(64) Line {  // the alignment that Launch::args promises
    std::byte bytes[64];
  };
  struct Step {
    HostFn host;       // nullptr: a copy
    void* to;
    const void* from;
    size_t size;       // a copy's bytes, or a launch's first line in args_
  };
  std::vector<Step> steps_;
  std::vector<Line> args_;
  std::vector<device::CapturedLaunch> captured_;  // what each step is, for profiles
};

CpuStream::CpuStream(cpu::Pool& pool) : pool_(pool) {
  device::stream_counts(kCpu, nullptr);  // the row is there before the first replay
}
CpuStream::~CpuStream() = default;

Status CpuStream::launch(const Launch& launch) {
  if (launch.host == nullptr)
    return Status(
        Code::kInvalidArgument,
        strf("cpu stream: launch of %s: it has no host function, so it was prepared for another backend", launch.op));
  if (launch.args_bytes > kMaxArgsBytes)
    return Status(Code::kInvalidArgument, strf("cpu stream: launch of %s: args_bytes is %u, at most %zu fit", launch.op,
                                               launch.args_bytes, kMaxArgsBytes));
  if (capture_) {
    capture_->add(launch);
    return {};
  }
  device::count(device::stream_counts(kCpu, nullptr).launches);
  const device::Observed seen([&] { return work_of(launch.op, launch.bytes, launch.flops); });
  launch.host(launch.args, pool_);
  return {};
}

Status CpuStream::copy(void* to, const void* from, size_t bytes) {
  VV_TRY(check_copy("cpu", to, from, bytes));
  if (bytes == 0) return {};
  if (capture_) {
    capture_->add_copy(to, from, bytes);
    return {};
  }
  device::StreamCounts& counts = device::stream_counts(kCpu, nullptr);
  device::count(counts.copies);
  device::count(counts.copied_bytes, static_cast<int64_t>(bytes));
  const device::Observed seen([&] { return work_of("copy", 2 * static_cast<int64_t>(bytes), 0); });
  std::memcpy(to, from, bytes);
  return {};
}

Status CpuStream::begin_capture() {
  if (capture_) return wrong_time("cpu", "begin_capture", "already capturing; end_capture() first");
  capture_ = std::make_unique<CpuExecutable>();
  return {};
}

Result<std::unique_ptr<Executable>> CpuStream::end_capture() {
  if (!capture_) return wrong_time("cpu", "end_capture", "not capturing; begin_capture() first");
  capture_->finish();
  return std::unique_ptr<Executable>(std::move(capture_));
}

Status CpuStream::replay(Executable& executable) {
  if (capture_) return wrong_time("cpu", "replay", "the stream is capturing, and a capture cannot hold a replay");
  const auto* mine = dynamic_cast<const CpuExecutable*>(&executable);
  if (mine == nullptr) return foreign("replay", "executable");
  device::count(device::stream_counts(kCpu, nullptr).replays);
  mine->run(pool_);
  return {};
}

Status CpuStream::record(Event& event) {
  if (capture_) return wrong_time("cpu", "record", "the stream is capturing; order graphs with a Plan");
  if (dynamic_cast<CpuEvent*>(&event) == nullptr) return foreign("record", "event");
  return {};
}

Status CpuStream::wait(Event& event) {
  if (capture_) return wrong_time("cpu", "wait", "the stream is capturing; order graphs with a Plan");
  if (dynamic_cast<CpuEvent*>(&event) == nullptr) return foreign("wait", "event");
  return {};
}

Status CpuStream::pass(Gate& gate, uint32_t mask) {
  auto* mine = dynamic_cast<CpuGate*>(&gate);
  if (mine == nullptr) return foreign("pass", "gate");
  VV_TRY(check_mask("cpu", gate, mask));
  if (!capture_) {
    mine->pass(mask);
    return {};
  }
  Launch wait;
  wait.op = "gate";
  wait.host = [](const void* args, cpu::Pool&) {
    const auto* g = static_cast<const GateArgs*>(args);
    g->gate->pass(g->mask);
  };
  wait.set_args(GateArgs{mine, mask, false});
  capture_->add(wait);
  return {};
}

Status CpuStream::set(Gate& gate, int word, bool shut) {
  auto* mine = dynamic_cast<CpuGate*>(&gate);
  if (mine == nullptr) return foreign("set", "gate");
  VV_TRY(check_word("cpu", "set", gate, word, false));
  if (!capture_) {
    mine->write(word, shut);
    return {};
  }
  Launch write;
  write.op = "gate";
  write.host = [](const void* args, cpu::Pool&) {
    const auto* g = static_cast<const GateArgs*>(args);
    g->gate->write(static_cast<int>(g->mask), g->shut);
  };
  write.set_args(GateArgs{mine, static_cast<uint32_t>(word), shut});
  capture_->add(write);
  return {};
}

Status CpuStream::synchronize() {
  if (capture_) return wrong_time("cpu", "synchronize", "the stream is capturing, nothing has run");
  return {};
}

Result<std::unique_ptr<Stream>> CpuBackend::make_stream(int level) {
  if (level != 0)
    return Status(Code::kInvalidArgument, strf("cpu backend: stream of priority level %d: the one level is 0", level));
  return std::unique_ptr<Stream>(std::make_unique<CpuStream>(pool_));
}

Result<std::unique_ptr<Event>> CpuBackend::make_event() {
  return std::unique_ptr<Event>(std::make_unique<CpuEvent>());
}

Result<std::unique_ptr<Gate>> CpuBackend::make_gate(int stream_words, int host_words) {
  VV_TRY(check_gate_words("cpu", stream_words, host_words));
  return std::unique_ptr<Gate>(std::make_unique<CpuGate>(stream_words, host_words));
}

Result<Buffer> CpuBackend::make_buffer(std::string name, size_t bytes) {
  if (bytes == 0) return Status(Code::kInvalidArgument, "buffer " + name + ": 0 bytes");
  const size_t padded = (bytes + kAlign - 1) / kAlign * kAlign;
  void* data = padded < bytes ? nullptr : std::aligned_alloc(kAlign, padded);
  if (data == nullptr)
    return Status(Code::kOutOfMemory, strf("buffer %s: no %zu bytes of host memory", name.c_str(), bytes));
  std::memset(data, 0, padded);  // also takes the page faults now, not at the first replay
  return Buffer(std::move(name), data, bytes, Place::host, [](void* p, size_t, void*) { std::free(p); });
}

}  // namespace vivace::exec
