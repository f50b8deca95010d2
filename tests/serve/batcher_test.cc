// Batcher: which rows it queues as a prompt's. That decides a step's class, and so the bits of an answer: they may not
// hang on who else is there.
#include "vivace/serve/batcher.h"

#include <gtest/gtest.h>

#include <deque>
#include <map>
#include <stdexcept>
#include <vector>

namespace vivace::serve {
namespace {

using engine::Sampled;
using engine::TokenRow;

/// Draws each row's position and remembers the class that each sampled row was computed in.
class Scripted : public engine::TextModel {
 public:
  explicit Scripted(bool mixed) {
    limits_.vocab = 1000, limits_.context = 256, limits_.max_batch = 4, limits_.prefill_chunk = 16,
    limits_.max_in_flight_steps = 2, limits_.mixed = mixed;
  }
  const std::string& family() const override { return name_; }
  engine::Report report() const override { return {}; }
  std::vector<engine::MemoryLine> memory() const override { return {}; }
  engine::TextLimits limits() const override { return limits_; }
  Status start(int, const engine::Sampling&, int) override { return {}; }
  Status set_bias(int, std::span<const float>) override { return {}; }
  Status issue(std::span<const TokenRow> rows) override {
    bool decode = true;
    for (const TokenRow& r : rows) decode = decode && r.sample && !r.prompt;
    if (decode) last_.assign(rows.begin(), rows.end());
    auto& drawn = queued_.emplace_back();
    for (const TokenRow& r : rows)
      if (r.sample) drawn.push_back({r.pos, r.slot, 0}), classes[{r.slot, r.pos}] = decode;
    return {};
  }
  Status repeat() override {
    for (TokenRow& r : last_) ++r.pos;
    return issue(std::vector<TokenRow>(last_));
  }
  Status collect(std::span<Sampled> out) override {
    if (queued_.empty() || out.size() != queued_.front().size())
      return Status(Code::kFailedPrecondition, "not what was queued");
    std::copy(queued_.front().begin(), queued_.front().end(), out.begin());
    queued_.pop_front();
    return {};
  }
  Result<engine::Profile> profile(int, int, bool, bool) override { return Status(Code::kUnsupported, "no profile"); }
  int queued() const override { return static_cast<int>(queued_.size()); }
  Result<Tensor> logits() override { return Status(Code::kUnsupported, "no logits"); }

  std::map<std::pair<int, int>, bool> classes;  // (slot, position) -> decode class

 private:
  std::string name_ = "scripted";
  engine::TextLimits limits_;
  std::vector<TokenRow> last_;
  std::deque<std::vector<Sampled>> queued_;
};

std::map<std::pair<int, int>, bool> classes_of(const std::vector<int>& prompts) {
  Scripted model(false);
  {
    Batcher batcher(model);
    std::vector<Event> events;
    for (const int n : prompts) {
      Request r;
      r.prompt.assign(static_cast<size_t>(n), 7);
      r.max_tokens = 3;
      EXPECT_TRUE(batcher.submit(std::move(r)).ok());
    }
    for (int steps = 0; !batcher.idle(); ++steps) {
      const Status s = batcher.step(&events);
      if (!s.ok() || steps > 1000) throw std::runtime_error(s.to_string());  // ends the test: it would go on for ever
    }
  }
  return model.classes;
}

TEST(Batcher, ClassOfARowDoesNotHangOnItsCompany) {
  for (const int n : {1, 2, 15, 16, 17, 33}) {
    const auto alone = classes_of({n});
    ASSERT_EQ(alone.size(), 3u);
    EXPECT_FALSE(alone.at({0, n - 1})) << "the last token of a prompt of " << n;
    EXPECT_TRUE(alone.at({0, n}));
    for (const int other : {1, 5, 16, 17, 40}) {
      const auto beside = classes_of({n, other, other});
      for (const auto& [at, decode] : alone)
        EXPECT_EQ(beside.at(at), decode) << "prompt " << n << " beside " << other << ", position " << at.second;
    }
  }
}

}  // namespace
}  // namespace vivace::serve
