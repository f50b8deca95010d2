// Masks, forced tokens and min_tokens: an answer is the one that the same rules give by hand, whoever answers beside
// it.
#include <gtest/gtest.h>

#include <random>

#include "tests/serve/toy_model.h"
#include "vivace/serve/engine_loop.h"

namespace vivace::serve {
namespace {

using testing::ToyModel;
using std::chrono::milliseconds;

constexpr int kVocab = 50;
using Words = std::vector<uint32_t>;

bool allows(const Words& mask, int32_t t) {
  return mask.empty() || (mask[static_cast<size_t>(t) / 32] >> (t % 32) & 1u) != 0;
}

/// What the model draws behind `context`.
int32_t next(const std::vector<int32_t>& context, const Words& mask) {
  int32_t t = ToyModel::answer(context, 1, kVocab).front();
  while (!allows(mask, t)) t = (t + 1) % kVocab;
  return t;
}

/// A rule that hangs on the last token alone: every third token, and now and then tokens that must come first.
struct Rule {
  Words mask;
  std::vector<int32_t> forced;
};
Rule rule_after(int32_t token) {
  Rule r{Words((kVocab + 31) / 32, 0), {}};
  for (int t = token % 3; t < kVocab; t += 3) r.mask[static_cast<size_t>(t) / 32] |= 1u << (t % 32);
  for (int i = 0; token % 4 == 1 && i < 1 + token % 5; ++i) r.forced.push_back((token * 7 + i) % kVocab);
  return r;
}

std::vector<int32_t> ruled(std::vector<int32_t> context, const Request& r) {
  std::vector<int32_t> out;
  Words mask = r.mask;
  const auto add = [&](int32_t t) {
    out.push_back(t);
    context.push_back(t);
  };
  while (static_cast<int>(out.size()) < r.max_tokens) {
    add(next(context, mask));
    const Rule rule = rule_after(out.back());
    for (const int32_t t : rule.forced)
      if (static_cast<int>(out.size()) < r.max_tokens) add(t);
    mask = rule.mask;
  }
  return out;
}

engine::TextLimits limits(int max_batch, int max_in_flight_steps, bool mixed, int pages) {
  engine::TextLimits l;
  l.vocab = kVocab, l.context = 64, l.max_batch = max_batch, l.prefill_chunk = 8,
  l.max_in_flight_steps = max_in_flight_steps, l.mixed = mixed;
  if (pages > 0) l.page = 4, l.pages = pages;
  return l;
}

std::vector<int32_t> read_all(RequestHandle* h, Finish* finish) {
  std::vector<int32_t> out;
  Event events[4];
  while (!h->over()) {
    h->wait(milliseconds(100));
    for (size_t n = h->read(events); n > 0; n = h->read(events))
      for (size_t i = 0; i < n; ++i) {
        if (events[i].token >= 0) out.push_back(events[i].token);
        *finish = events[i].finish;
      }
  }
  return out;
}

TEST(Masks, MinTokensHoldsBackStops) {
  for (const int max_in_flight_steps : {1, 4}) {
    for (int seed = 0; seed < 40; ++seed) {
      ToyModel model(limits(2, max_in_flight_steps, true, 0));
      Batcher batcher(model);
      Request r{{seed}, 12, {}, {1, 4, 9, 16, 25, 36, 49, 2, 3, 5, 7, 11, 13}};
      r.min_tokens = seed % 13;
      std::vector<int32_t> want, context = r.prompt;
      Words early((kVocab + 31) / 32, ~0u);
      for (const int32_t t : r.stop) early[static_cast<size_t>(t) / 32] &= ~(1u << (t % 32));
      while (static_cast<int>(want.size()) < r.max_tokens) {
        const int32_t t = next(context, static_cast<int>(want.size()) < r.min_tokens ? early : Words());
        if (std::find(r.stop.begin(), r.stop.end(), t) != r.stop.end()) break;
        want.push_back(t);
        context.push_back(t);
      }
      std::vector<int32_t> got;
      std::vector<Event> events;
      ASSERT_TRUE(batcher.submit(Request{{seed + 1}, 9, {}, {}}).ok());  // somebody beside it
      const auto id = batcher.submit(r);
      ASSERT_TRUE(id.ok());
      while (!batcher.idle()) {
        ASSERT_TRUE(batcher.step(&events).ok());
        for (const Event& e : events)
          if (e.request == *id && e.token >= 0) got.push_back(e.token);
      }
      EXPECT_EQ(got, want) << seed;
      EXPECT_GE(static_cast<int>(got.size()), r.min_tokens);
    }
  }
}

/// Masks made on a thread of their own, answers read on another, and free requests beside them; few blocks, so that
/// some wait in host memory.
TEST(Masks, RuledAnswersSideBySide) {
  for (int seed = 0; seed < 60; ++seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    const auto draw = [&](int low, int high) { return std::uniform_int_distribution<int>(low, high)(random); };
    const bool mixed = draw(0, 1) == 1;  // else answers and prompts are two steps at once
    ToyModel model(limits(draw(1, 4), draw(mixed ? 1 : 2, 4), mixed, draw(0, 2) * 12));
    EngineLoop loop(model);
    struct One {
      Request request;
      std::optional<RequestHandle> handle;
      std::optional<MaskHandle> masks;
    };
    std::vector<One> all(static_cast<size_t>(draw(1, 6)));
    const auto notifier = std::make_shared<Notifier>();
    for (One& one : all) {
      one.request.prompt.resize(static_cast<size_t>(draw(1, 12)));
      for (int32_t& t : one.request.prompt) t = draw(0, kVocab - 1);
      one.request.max_tokens = draw(1, 20);
      one.request.stepwise = draw(0, 3) > 0;
      if (one.request.stepwise) one.request.mask = rule_after(draw(0, 2)).mask;
      auto handle = loop.submit(one.request, {.masks = one.request.stepwise ? notifier : nullptr});
      ASSERT_TRUE(handle.ok()) << handle.status().message();
      one.handle.emplace(std::move(handle).value());
      if (one.request.stepwise) one.masks.emplace(one.handle->masks());
    }
    std::thread masker([&] {
      for (bool over = false; !over;) {
        const uint32_t seen = notifier->now();
        over = true;
        for (One& one : all) {
          if (!one.masks) continue;
          int32_t drawn[8];
          const size_t n = one.masks->read(drawn);
          ASSERT_LE(n, 1u);
          if (n == 1) {
            const Rule rule = rule_after(drawn[0]);
            // What follows the forced tokens hangs on the token that was drawn.
            ASSERT_TRUE(one.masks->set_mask(rule.mask, rule.forced).ok());
          }
          over = over && one.masks->over();
        }
        if (!over) notifier->wait(seen, milliseconds(100));
      }
    });
    for (One& one : all) {
      Finish finish = Finish::none;
      const std::vector<int32_t> got = read_all(&*one.handle, &finish);
      EXPECT_EQ(finish, Finish::length) << one.handle->status().message();
      EXPECT_EQ(got, one.request.stepwise ? ruled(one.request.prompt, one.request)
                                          : ToyModel::answer(one.request.prompt, one.request.max_tokens, kVocab))
          << seed;
    }
    masker.join();
    EXPECT_FALSE(model.two_callers);
  }
}

TEST(Masks, WrongOnesEndTheirRequestAlone) {
  ToyModel model(limits(3, 2, true, 0));
  EngineLoop loop(model);
  const auto notifier = std::make_shared<Notifier>();
  for (const int how : {0, 1, 2, 3, 4}) {
    Request free{{1, 2}, 20, {}, {}}, held = free;
    held.stepwise = true;
    auto a = loop.submit(free);
    auto b = loop.submit(held, {.masks = notifier});
    ASSERT_TRUE(a.ok() && b.ok());
    {
      MaskHandle masks = b->masks();
      int32_t token;
      for (uint32_t seen = notifier->now(); masks.read({&token, 1}) == 0; seen = notifier->now())
        notifier->wait(seen, milliseconds(50));
      EXPECT_FALSE(b->set_mask({}).ok()) << "they come from the other side";
      const int32_t outside = kVocab;
      Status said;
      if (how == 0) said = masks.set_mask(Words(1, 1));
      if (how == 1) said = masks.set_mask(Words(2, 0));
      if (how == 2) said = masks.set_mask({}, {&outside, 1});
      if (how == 3) masks.fail(Status(Code::kInvalidArgument, "a rule without a way out"));
      if (how == 4) said = masks.set_mask({});
      EXPECT_TRUE(said.ok());
      if (how == 4) said = masks.set_mask({});
      EXPECT_EQ(said.ok(), how != 4) << "once a token";
    }  // 4: nobody will say what comes next
    Finish finish = Finish::none;
    read_all(&*b, &finish);
    EXPECT_EQ(finish, how == 4 ? Finish::cancelled : Finish::error);
    EXPECT_EQ(read_all(&*a, &finish), ToyModel::answer({1, 2}, 20, kVocab));
  }
}

TEST(Masks, RefusedAtOnce) {
  const engine::TextLimits l = limits(2, 1, true, 0);
  Request r{{1}, 4, {}, {}};
  r.mask = Words(1, ~0u);
  EXPECT_EQ(check(r, l).code(), Code::kInvalidShape);
  r.mask = Words{0, ~0u << (kVocab - 32)};  // bits beyond the vocabulary alone
  EXPECT_EQ(check(r, l).code(), Code::kInvalidArgument);
  r.mask = {};
  r.min_tokens = 5;
  EXPECT_EQ(check(r, l).code(), Code::kInvalidArgument);
  r.min_tokens = -1;
  EXPECT_EQ(check(r, l).code(), Code::kInvalidArgument);
}

}  // namespace
}  // namespace vivace::serve
