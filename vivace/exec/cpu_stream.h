// The CPU backend: a stream runs launches on a thread pool, and a capture is a flat list of them.
#pragma once
#include <memory>

#include "vivace/exec/backend.h"

namespace vivace::exec {

class CpuExecutable;

/// Eager work is done when the call returns, so every event is reached as soon as it is recorded and
/// streams are ordered by the calls of the host. Streams on one pool belong to one thread at a time.
class CpuStream final : public Stream {
 public:
  /// `pool` must outlive the stream and everything captured on it.
  explicit CpuStream(cpu::Pool& pool);
  ~CpuStream() override;

  Status launch(const Launch& launch) override;
  Status copy(void* to, const void* from, size_t bytes) override;
  Status begin_capture() override;
  Result<std::unique_ptr<Executable>> end_capture() override;
  bool capturing() const override { return capture_ != nullptr; }
  Status replay(Executable& executable) override;
  Status record(Event& event) override;
  Status wait(Event& event) override;
  Status pass(Gate& gate, uint32_t mask) override;
  Status set(Gate& gate, int word, bool shut) override;
  Status synchronize() override;

 private:
  cpu::Pool& pool_;
  std::unique_ptr<CpuExecutable> capture_;  // set while capturing
};

class CpuEvent final : public Event {
 public:
  Status synchronize() override { return {}; }
};

class CpuBackend final : public Backend {
 public:
  /// `pool` must outlive the backend and its streams.
  explicit CpuBackend(cpu::Pool& pool) : pool_(pool) {}
  const char* name() const override { return "cpu"; }
  int priority_levels() const override { return 1; }
  Result<std::unique_ptr<Stream>> make_stream(int level = 0) override;
  Result<std::unique_ptr<Event>> make_event() override;
  Result<std::unique_ptr<Gate>> make_gate(int stream_words, int host_words) override;
  Result<Buffer> make_buffer(std::string name, size_t bytes) override;

 private:
  cpu::Pool& pool_;
};

}  // namespace vivace::exec
