// A text model that thinks nothing: each token follows from the whole sequence of its slot, so that one row of another
// request, one row too few or one page that changed hands gives another answer. Where its limits say that it is
// recurrent a slot carries a hash of what it was fed besides, and what is not of the same tokens as its pages draws
// another token. It also notices two callers at once.
#pragma once
#include <atomic>
#include <cstring>
#include <deque>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "vivace/base/check.h"
#include "vivace/engine/model.h"

namespace vivace::serve::testing {

class ToyModel final : public engine::TextModel {
 public:
  explicit ToyModel(engine::TextLimits limits)
      : limits_(limits),
        slots_(static_cast<size_t>(limits.max_batch)),
        states_(static_cast<size_t>(limits.max_batch + limits.states)),
        cells_(static_cast<size_t>(limits.pages * limits.page), -1) {
    if (limits.pages > 0)
      blocks_.emplace(limits.pages, limits.page, Hash128{1, 2},
                      limits.recurrent ? limits.states : engine::KvBlocks::kNoState);
  }

  /// What a request is answered with.
  static std::vector<int32_t> answer(std::vector<int32_t> context, int count, int vocab) {
    std::vector<int32_t> out;
    for (int i = 0; i < count; ++i) {
      out.push_back(follows(context, vocab));
      context.push_back(out.back());
    }
    return out;
  }
  int free() const { return blocks_ ? blocks_->available() : 0; }
  /// Of limits().states, those that could be taken.
  int takeable_states() {
    std::vector<int32_t> all;
    for (int32_t s = blocks_->take_state(); s >= 0; s = blocks_->take_state()) all.push_back(s);
    for (const int32_t s : all) blocks_->drop_state(s);
    return static_cast<int>(all.size());
  }
  int steps() const { return steps_; }
  std::atomic<int> fail_at{-1};  // the number of the step whose issue() fails
  std::atomic<bool> two_callers{false};

  const std::string& family() const override { return family_; }
  engine::Report report() const override { return {}; }
  std::vector<engine::MemoryLine> memory() const override { return {}; }
  engine::TextLimits limits() const override { return limits_; }
  int queued() const override { return static_cast<int>(in_flight_.size()); }
  engine::KvBlocks* blocks() override { return blocks_ ? &*blocks_ : nullptr; }
  int64_t block_bytes() const override { return limits_.page * int64_t{sizeof(int32_t)}; }

  Status start(int slot, const engine::Sampling&, int positions) override {
    const Alone alone(this);
    release(slot);
    Slot& s = slots_[static_cast<size_t>(slot)];
    s = {};
    states_[static_cast<size_t>(slot)] = {};
    if (!blocks_) return {};
    if (blocks_->needed(positions) > blocks_->available()) return Status(Code::kLimitExceeded, "no blocks");
    for (int n = blocks_->needed(positions); n > 0; --n) s.own.push_back(blocks_->take());
    s.table = s.own;
    return {};
  }
  void release(int slot) override {
    if (blocks_) blocks_->drop(&slots_[static_cast<size_t>(slot)].own);
  }
  Status resume(int slot, const engine::Sampling&, std::span<const int32_t>) override {
    const Alone alone(this);
    release(slot);
    slots_[static_cast<size_t>(slot)] = {};
    states_[static_cast<size_t>(slot)] = {};
    return {};
  }
  Status map(int slot, int first, std::span<const int32_t> blocks) override {
    const Alone alone(this);
    auto& table = slots_[static_cast<size_t>(slot)].table;
    if (first > static_cast<int>(table.size())) return Status(Code::kInvalidArgument, "a gap");
    table.resize(static_cast<size_t>(first));
    table.insert(table.end(), blocks.begin(), blocks.end());
    return {};
  }
  Status copy_block(int32_t from, int32_t to) override {
    std::copy_n(cells_.begin() + from * limits_.page, limits_.page, cells_.begin() + to * limits_.page);
    return {};
  }
  Status read_blocks(std::span<const int32_t> blocks, std::span<std::byte> to) override {
    for (size_t i = 0; i < blocks.size(); ++i)
      std::memcpy(to.data() + i * bytes(), &cells_[static_cast<size_t>(blocks[i] * limits_.page)], bytes());
    return {};
  }
  Status write_blocks(std::span<const int32_t> blocks, std::span<const std::byte> from) override {
    for (size_t i = 0; i < blocks.size(); ++i)
      std::memcpy(&cells_[static_cast<size_t>(blocks[i] * limits_.page)], from.data() + i * bytes(), bytes());
    return {};
  }
  int64_t state_bytes() const override { return limits_.recurrent ? static_cast<int64_t>(sizeof(uint64_t)) : 0; }
  Status copy_state(int from, int to) override {
    states_.at(static_cast<size_t>(to)) = states_.at(static_cast<size_t>(from));
    ++copied_states;
    return {};
  }
  Status read_state(int state, std::span<std::byte> to) override {
    std::memcpy(to.data(), &states_.at(static_cast<size_t>(state)).hash, to.size());
    return {};
  }
  Status write_state(int state, int position, std::span<const std::byte> from) override {
    State& s = states_.at(static_cast<size_t>(state));
    std::memcpy(&s.hash, from.data(), from.size());
    s.position = position;
    return {};
  }
  int64_t copied_states = 0;
  Status set_bias(int slot, std::span<const float> bias) override {
    const Alone alone(this);
    slots_[static_cast<size_t>(slot)].bias.assign(bias.begin(), bias.end());
    return {};
  }
  Status set_mask(int slot, std::span<const uint32_t> words) override {
    const Alone alone(this);
    slots_[static_cast<size_t>(slot)].mask.assign(words.begin(), words.end());
    return {};
  }
  Status issue(std::span<const engine::TokenRow> rows) override {
    const Alone alone(this);
    if (steps_++ == fail_at) return Status(Code::kCudaError, "planned");
    if (in_flight_.size() == static_cast<size_t>(limits_.max_in_flight_steps))
      return Status(Code::kLimitExceeded, "too many");
    std::vector<engine::Sampled> drawn;
    last_.clear();
    for (const engine::TokenRow& r : rows) {
      VV_TRY(carry(r));
      draw(r, &drawn);
    }
    in_flight_.push_back(drawn);
    return {};
  }
  Status repeat() override {
    const Alone alone(this);
    ++steps_;
    std::vector<engine::Sampled> drawn;
    auto rows = std::move(last_);
    last_.clear();
    for (engine::TokenRow& r : rows) {
      r.token = slots_[static_cast<size_t>(r.slot)].drawn;
      ++r.pos;
      VV_TRY(carry(r));
      draw(r, &drawn);
    }
    in_flight_.push_back(drawn);
    return {};
  }
  Status collect(std::span<engine::Sampled> out) override {
    const Alone alone(this);
    if (in_flight_.empty() || in_flight_.front().size() != out.size())
      return Status(Code::kInternal, "draws of another step");
    std::copy(in_flight_.front().begin(), in_flight_.front().end(), out.begin());
    in_flight_.pop_front();
    return {};
  }
  Result<engine::Profile> profile(int, int, bool, bool) override { return engine::Profile{}; }
  /// The token that was drawn, and then those behind it in a ring: 0, -1, -2 and so on, which are their
  /// log-probabilities too.
  Result<Tensor> logits() override {
    if (!in_flight_.empty()) return Status(Code::kFailedPrecondition, "steps are queued");
    logits_.clear();
    for (const engine::TokenRow& r : last_)
      for (int v = 0; v < limits_.vocab; ++v)
        logits_.push_back(
            -static_cast<float>((v - slots_[static_cast<size_t>(r.slot)].drawn + limits_.vocab) % limits_.vocab));
    return tensor(logits_.data(), DType::f32, Shape(last_.size(), limits_.vocab));
  }

 private:
  struct Slot {
    std::vector<int32_t> tokens;  // without blocks
    std::vector<int32_t> table, own;
    std::vector<float> bias;
    std::vector<uint32_t> mask;
    int32_t drawn = -1;
  };
  struct State {
    uint64_t hash = 1469598103934665603u;
    int position = 0;
  };
  struct Alone {
    explicit Alone(ToyModel* m) : model(m) {
      if (model->inside_.exchange(true)) model->two_callers = true;
    }
    ~Alone() { model->inside_ = false; }
    ToyModel* model;
  };

  static uint64_t mixed(uint64_t h, int32_t token) { return (h ^ static_cast<uint64_t>(token)) * 1099511628211u; }
  static uint64_t hash(const std::vector<int32_t>& tokens) {
    uint64_t h = State().hash;
    for (const int32_t t : tokens) h = mixed(h, t);
    return h;
  }
  static int32_t follows(const std::vector<int32_t>& tokens, int vocab) {
    return static_cast<int32_t>((hash(tokens) >> 20) % static_cast<uint64_t>(vocab));
  }
  /// What a row leaves in its slot's state, which only goes forward.
  Status carry(const engine::TokenRow& r) {
    if (!limits_.recurrent) return {};
    State& s = states_[static_cast<size_t>(r.slot)];
    if (r.pos == 0) s = {};
    if (r.pos != s.position)
      return Status(Code::kFailedPrecondition, strf("%d behind a state at %d", r.pos, s.position));
    s.hash = mixed(s.hash, r.token);
    ++s.position;
    return {};
  }
  size_t bytes() const { return static_cast<size_t>(block_bytes()); }
  size_t cell(const Slot& s, int pos) const {
    return static_cast<size_t>(s.table.at(static_cast<size_t>(pos / limits_.page)) * limits_.page + pos % limits_.page);
  }
  void draw(const engine::TokenRow& r, std::vector<engine::Sampled>* drawn) {
    Slot& s = slots_[static_cast<size_t>(r.slot)];
    if (blocks_) cells_[cell(s, r.pos)] = r.token;
    else
      s.tokens.resize(static_cast<size_t>(r.pos)),
          s.tokens.push_back(r.token);  // a position that is written again forgets what came after
    if (!r.sample) return;
    for (int pos = 0; blocks_ && pos <= r.pos; ++pos) {
      s.tokens.resize(static_cast<size_t>(r.pos) + 1);
      s.tokens[static_cast<size_t>(pos)] = cells_[cell(s, pos)];
    }
    s.drawn = follows(s.tokens, limits_.vocab);
    if (limits_.recurrent && states_[static_cast<size_t>(r.slot)].hash != hash(s.tokens))
      s.drawn = (s.drawn + 1) % limits_.vocab;
    const auto forbidden = [&](int32_t t) {
      return !s.mask.empty() && (s.mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1u) == 0;
    };
    while (forbidden(s.drawn)) s.drawn = (s.drawn + 1) % limits_.vocab;
    if (!s.bias.empty())
      while (!(s.bias[static_cast<size_t>(s.drawn)] > -1e30f)) s.drawn = (s.drawn + 1) % limits_.vocab;
    drawn->push_back({s.drawn, r.slot, 0});
    last_.push_back(r);
  }

  const std::string family_ = "toy";
  engine::TextLimits limits_;
  std::vector<Slot> slots_;
  std::vector<State> states_;  // of slots, then kept ones
  std::deque<std::vector<engine::Sampled>> in_flight_;
  std::vector<engine::TokenRow> last_;
  std::vector<float> logits_;
  std::atomic<bool> inside_{false};
  std::optional<engine::KvBlocks> blocks_;
  std::vector<int32_t> cells_;  // a token a position of each block
  int steps_ = 0;
};

}  // namespace vivace::serve::testing
