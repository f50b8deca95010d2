// A third backend, for tests only: it runs nothing until somebody synchronises, and then picks among the
// streams at random whatever their events allow. The contract tests on it find order that a Plan or an
// event was asked for and did not give, as a GPU would, on a machine without one.
#include <deque>
#include <functional>

#include "tests/exec/subject.h"
#include "vivace/base/check.h"
#include "vivace/cpu/pool.h"
#include "vivace/exec/cpu_gate.h"
#include "vivace/exec/cpu_stream.h"

namespace vivace::exec::testing {
namespace {

class DeferredStream;

/// All streams of one subject, and the dice.
struct Machine {
  std::vector<DeferredStream*> streams;
  uint64_t dice = 1;
  uint64_t roll() {  // xorshift64
    dice ^= dice << 13, dice ^= dice >> 7, dice ^= dice << 17;
    return dice;
  }
  /// Runs heads of queues until `done`; Internal when every queue waits for what nobody will record.
  Status run_until(const std::function<bool()>& done);
};

class DeferredEvent final : public Event {
 public:
  struct State {
    uint64_t recorded = 0, done = 0;  // counts of record(): issued, reached
  };
  explicit DeferredEvent(Machine& machine) : machine_(machine) {}
  Status synchronize() override {
    return machine_.run_until([s = state, target = state->recorded] { return s->done >= target; });
  }
  const std::shared_ptr<State> state = std::make_shared<State>();

 private:
  Machine& machine_;
};

/// What was captured, cut where it passes a gate: other streams go on while it waits there.
class DeferredExecutable final : public Executable {
 public:
  struct Part {
    CpuGate* gate = nullptr;  // null: none before the first part
    uint32_t mask = 0;
    std::shared_ptr<Executable> captured;  // queued replays share it
  };
  explicit DeferredExecutable(std::vector<Part> p) : parts(std::move(p)) {}
  size_t launches() const override {
    size_t n = parts.size() - 1;  // a pass is one
    for (const Part& p : parts) n += p.captured->launches();
    return n;
  }
  const std::vector<Part> parts;
};

class DeferredStream final : public Stream {
 public:
  DeferredStream(Machine& machine, cpu::Pool& pool) : machine_(machine), eager_(pool) {
    machine_.streams.push_back(this);
  }
  ~DeferredStream() override { std::erase(machine_.streams, this); }

  Status launch(const Launch& l) override {
    if (capturing() || l.host == nullptr || l.args_bytes > kMaxArgsBytes) return eager_.launch(l);
    return push([this, l] { return eager_.launch(l); });
  }
  Status copy(void* to, const void* from, size_t bytes) override {
    VV_TRY(check_copy("deferred", to, from, bytes));
    if (capturing()) return eager_.copy(to, from, bytes);
    return push([this, to, from, bytes] { return eager_.copy(to, from, bytes); });
  }
  Status begin_capture() override {
    VV_TRY(eager_.begin_capture());
    parts_.assign(1, {});
    return {};
  }
  Result<std::unique_ptr<Executable>> end_capture() override {
    VV_ASSIGN(std::unique_ptr<Executable> e, eager_.end_capture());
    parts_.back().captured = std::move(e);
    return std::unique_ptr<Executable>(std::make_unique<DeferredExecutable>(std::move(parts_)));
  }
  bool capturing() const override { return eager_.capturing(); }
  Status replay(Executable& executable) override {
    VV_TRY(idle("replay"));
    auto* mine = dynamic_cast<DeferredExecutable*>(&executable);
    if (mine == nullptr) return foreign("executable");
    for (const DeferredExecutable::Part& p : mine->parts) {
      if (p.gate != nullptr) VV_TRY(push_pass(p.gate, p.mask));
      VV_TRY(push([this, captured = p.captured] { return eager_.replay(*captured); }));
    }
    return {};
  }
  Status pass(Gate& gate, uint32_t mask) override {
    auto* mine = dynamic_cast<CpuGate*>(&gate);
    if (mine == nullptr) return foreign("gate");
    VV_TRY(check_mask("deferred", gate, mask));
    if (!capturing()) return push_pass(mine, mask);
    VV_ASSIGN(std::unique_ptr<Executable> e, eager_.end_capture());
    parts_.back().captured = std::move(e);
    parts_.push_back({mine, mask, nullptr});
    return eager_.begin_capture();
  }
  Status set(Gate& gate, int word, bool shut) override {
    if (capturing()) return eager_.set(gate, word, shut);
    auto* mine = dynamic_cast<CpuGate*>(&gate);
    if (mine == nullptr) return foreign("gate");
    VV_TRY(check_word("deferred", "set", gate, word, false));
    return push([mine, word, shut] {
      mine->write(word, shut);
      return Status();
    });
  }
  Status record(Event& event) override {
    VV_TRY(idle("record"));
    auto* mine = dynamic_cast<DeferredEvent*>(&event);
    if (mine == nullptr) return foreign("event");
    return push([s = mine->state, number = ++mine->state->recorded] {
      s->done = std::max(s->done, number);
      return Status();
    });
  }
  Status wait(Event& event) override {
    VV_TRY(idle("wait"));
    auto* mine = dynamic_cast<DeferredEvent*>(&event);
    if (mine == nullptr) return foreign("event");
    queue_.push_back(
        {[s = mine->state, target = mine->state->recorded] { return s->done >= target; }, [] { return Status(); }});
    return {};
  }
  Status synchronize() override {
    VV_TRY(idle("synchronize"));
    return machine_.run_until([this] { return queue_.empty(); });
  }

  bool runnable() const { return !queue_.empty() && (!queue_.front().ready || queue_.front().ready()); }
  Status run_head() {
    const Item head = std::move(queue_.front());
    queue_.pop_front();
    return head.work();
  }

 private:
  struct Item {
    std::function<bool()> ready;  // empty: always
    std::function<Status()> work;
  };
  Status push_pass(CpuGate* gate, uint32_t mask) {
    queue_.push_back({[gate, mask] { return gate->open(mask); }, [] { return Status(); }});
    return {};
  }
  Status push(std::function<Status()> work) {
    queue_.push_back({{}, std::move(work)});
    return {};
  }
  Status idle(const char* call) const {
    return capturing() ? wrong_time("deferred", call, "the stream is capturing") : Status();
  }
  static Status foreign(const char* what) {
    return Status(Code::kInvalidArgument, strf("deferred stream: the %s comes from another backend", what));
  }
  Machine& machine_;
  CpuStream eager_;
  std::vector<DeferredExecutable::Part> parts_;  // of the capture
  std::deque<Item> queue_;
};

Status Machine::run_until(const std::function<bool()>& done) {
  while (!done()) {
    std::vector<DeferredStream*> ready;
    for (DeferredStream* s : streams)
      if (s->runnable()) ready.push_back(s);
    if (ready.empty())
      return Status(Code::kInternal, "every stream waits for an event that nobody records or a gate that nobody opens");
    VV_TRY(ready[roll() % ready.size()]->run_head());
  }
  return {};
}

class DeferredSubject final : public Subject, private Backend {
 public:
  Backend& backend() override { return *this; }
  Launch affine(float* to, const float* from, float a, float b, uint32_t n) override {
    return cpu_->affine(to, from, a, b, n);
  }

 private:
  const char* name() const override { return "deferred"; }
  int priority_levels() const override { return 1; }
  Result<std::unique_ptr<Stream>> make_stream(int level) override {
    VV_TRY(cpu_->backend().make_stream(level).status());
    return std::unique_ptr<Stream>(std::make_unique<DeferredStream>(machine_, pool_));
  }
  Result<std::unique_ptr<Event>> make_event() override {
    return std::unique_ptr<Event>(std::make_unique<DeferredEvent>(machine_));
  }
  Result<std::unique_ptr<Gate>> make_gate(int stream_words, int host_words) override {
    return cpu_->backend().make_gate(stream_words, host_words);
  }
  Result<Buffer> make_buffer(std::string name, size_t bytes) override {
    return cpu_->backend().make_buffer(std::move(name), bytes);
  }

  std::unique_ptr<Subject> cpu_ = std::move(make_cpu_subject()).value();
  cpu::Pool pool_{1};
  Machine machine_;
};

/// Without the wait the deferred backend must show the wrong order: else these tests find nothing.
TEST(DeferredSubject, ShowsAMissingWait) {
  int wrong = 0;
  auto subject = std::move(make_deferred_subject()).value();
  auto first = std::move(subject->backend().make_stream()).value(),
       second = std::move(subject->backend().make_stream()).value();
  for (int i = 0; i < 20; ++i) {
    float x = 1, y = 0;
    VV_EXPECT_OK(first->launch(subject->affine(&y, &x, 1, 0, 1)));   // y = 1
    VV_EXPECT_OK(second->launch(subject->affine(&x, &y, 1, 0, 1)));  // x = 1 + y
    VV_EXPECT_OK(first->synchronize());
    VV_EXPECT_OK(second->synchronize());
    wrong += x != 2 ? 1 : 0;
  }
  EXPECT_GT(wrong, 0);
  EXPECT_LT(wrong, 20);
}

}  // namespace

Result<std::unique_ptr<Subject>> make_deferred_subject() {
  return std::unique_ptr<Subject>(std::make_unique<DeferredSubject>());
}

}  // namespace vivace::exec::testing
