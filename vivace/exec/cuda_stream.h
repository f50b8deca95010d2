// The CUDA backend: streams of one device, captures as instantiated CUDA graphs.
#pragma once
#include <memory>
#include <vector>

#include "vivace/device/activity.h"
#include "vivace/device/residence.h"
#include "vivace/device/stream.h"
#include "vivace/exec/backend.h"

namespace vivace::exec {

/// A device stream under the contract. A capture becomes one graph; kernels with Launch::pdl keep
/// their programmatic dependency in it, but for the first one behind a gate, which begins when the
/// gate is open and not before. In a capture nothing may allocate device memory or load
/// code on this thread: the driver refuses it, and end_capture() then reports the lost capture.
/// Work that the caller puts on handle() itself is captured too.
class CudaStream final : public Stream {
 public:
  /// Takes a stream in any of device::Stream's forms: made here, borrowed from a framework, or
  /// adopted from a green context.
  explicit CudaStream(device::Stream stream) : stream_(std::move(stream)) {}
  ~CudaStream() override;

  Status launch(const Launch& launch) override;
  Status copy(void* to, const void* from, size_t bytes) override;
  Status begin_capture() override;
  Result<std::unique_ptr<Executable>> end_capture() override;
  bool capturing() const override { return capturing_; }
  /// Also when somebody else captures what is put on handle().
  Result<bool> in_capture() const;
  Status replay(Executable& executable) override;
  Status record(Event& event) override;
  Status wait(Event& event) override;
  Status pass(Gate& gate, uint32_t mask) override;
  Status set(Gate& gate, int word, bool shut) override;
  Status synchronize() override;

  const device::Device* device() const override { return &stream_.device(); }
  int partition() const override { return stream_.partition(); }
  cu::Stream handle() const { return stream_.handle(); }
  /// From here on launch(), copy() and replay() answer FailedPrecondition while it sleeps, as long as it lives: what
  /// they would use is not there.
  void use(std::shared_ptr<const device::Residence> memory) { memory_ = std::move(memory); }

 private:
  Status check_awake(const char* call) const;
  const device::Device& dev() const { return stream_.device(); }
  device::Stream stream_;
  std::shared_ptr<const device::Residence> memory_;  // may be null
  std::vector<device::CapturedLaunch> captured_;  // of the capture that goes on
  bool capturing_ = false;
  bool behind_gate_ = false;  // nothing was launched since pass()
};

class CudaEvent final : public Event {
 public:
  CudaEvent(const device::Device& device, device::Event event) : device_(device), event_(std::move(event)) {}
  Status synchronize() override;
  const device::Device& device() const { return device_; }
  device::Event& event() { return event_; }

 private:
  const device::Device& device_;
  device::Event event_;
};

/// Makes an executable of a graph that others instantiated, for Graph::adopt. `owned`: destroyed
/// with the executable; otherwise it must outlive it. `launches` is the caller's count, for reports.
/// Errors: InvalidArgument for null.
Result<std::unique_ptr<Executable>> adopt_cuda_graph(const device::Device& device, cu::GraphExec exec, bool owned,
                                                     size_t launches = 0);

class CudaBackend final : public Backend {
 public:
  /// `device` as Device::get() gives it.
  static Result<std::unique_ptr<CudaBackend>> create(const device::Device& device);
  const char* name() const override { return name_.c_str(); }
  int priority_levels() const override { return device_.priority_levels(); }
  Result<std::unique_ptr<Stream>> make_stream(int level = 0) override;
  Result<std::unique_ptr<Event>> make_event() override;
  Result<std::unique_ptr<Gate>> make_gate(int stream_words, int host_words) override;
  Result<Buffer> make_buffer(std::string name, size_t bytes) override;
  /// The same as one of `memory`'s blocks, on a device whose shared pool that is of. Its end waits for no work but that
  /// of `memory`'s streams.
  Result<Buffer> make_buffer(std::string name, size_t bytes, std::shared_ptr<device::Residence> memory);

 private:
  CudaBackend(const device::Device& device, device::Stream fills);
  const device::Device& device_;
  std::string name_;
  device::Stream fills_;  // zeroes new buffers
};

}  // namespace vivace::exec
