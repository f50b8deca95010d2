// Snapshots beside answers: nothing that is held is forgotten, everything comes back. Also with ThreadSanitizer.
#include "vivace/serve/snapshot.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/serve/toy_model.h"

namespace vivace::serve {
namespace {

using std::chrono::milliseconds;
using testing::ToyModel;

constexpr int kVocab = 97, kPage = 16;

engine::TextLimits limits(int max_batch, int max_in_flight_steps, int pages) {
  return {.vocab = kVocab,
          .context = 128,
          .max_batch = max_batch,
          .prefill_chunk = 16,
          .max_in_flight_steps = max_in_flight_steps,
          .mixed = max_in_flight_steps == 1,
          .biased = true,
          .page = pages > 0 ? kPage : 0,
          .pages = pages};
}

Request request(unsigned first, int prompt, int max_tokens) {
  Request r;
  for (int i = 0; i < prompt; ++i)
    r.prompt.push_back(static_cast<int32_t>((first + static_cast<unsigned>(i) * 7) % kVocab));
  r.max_tokens = max_tokens;
  return r;
}

/// `most` tokens, or all of them.
std::vector<int32_t> read(RequestHandle& h, size_t most) {
  std::vector<int32_t> got;
  Event e[1];
  for (int waited = 0; got.size() < most && !h.over() && waited < 60;) {
    if (h.read(e) == 0) waited += !h.wait(milliseconds(1000));
    else if (e->token >= 0) got.push_back(e->token);
  }
  return got;
}

/// Until nothing is pending and all blocks are free.
void settle(EngineLoop& loop, int free) {
  for (int i = 0; i < 10000 && (loop.pending() > 0 || loop.blocks().available != free); ++i)
    std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(loop.blocks().available, free);
}

TEST(Snapshot, AnAnswerGoesOnFromItAtAnyToken) {
  for (const int ahead : {1, 4}) {
    ToyModel model(limits(2, ahead, 40)), other(limits(2, ahead, 40));
    EngineLoop loop(model), elsewhere(other);
    for (const size_t cut : {1u, 15u, 16u, 17u, 30u}) {
      Request r = request(static_cast<unsigned>(cut), 40, 40);
      const std::vector<int32_t> want = ToyModel::answer(r.prompt, 40, kVocab);
      RequestHandle h = std::move(loop.submit(r)).value();
      std::vector<int32_t> tokens = r.prompt;
      for (const int32_t t : read(h, cut)) tokens.push_back(t);
      auto kept = Snapshot::take(loop, "me", tokens, h.number());
      ASSERT_TRUE(kept.ok());
      EXPECT_EQ((*kept)->positions(), 0) << "another salt";
      kept = Snapshot::take(loop, "", tokens, h.number(), true);
      ASSERT_TRUE(kept.ok()) << kept.status().message();
      EXPECT_EQ((*kept)->positions(), static_cast<int>(tokens.size()) - 1);
      const auto bytes = (*kept)->read();
      ASSERT_TRUE(bytes.ok());
      for (EngineLoop* on : {&loop, &elsewhere}) {
        auto there = Snapshot::write(*on, "", tokens, (*kept)->positions(), (*kept)->pure(), *bytes);
        ASSERT_TRUE(there.ok()) << there.status().message();
        Request rest{tokens, 40 - static_cast<int>(cut), {}, {}};
        rest.resumed = true;
        RequestHandle again = std::move(on->submit(rest)).value();
        EXPECT_EQ(read(again, 100), std::vector<int32_t>(want.begin() + static_cast<std::ptrdiff_t>(cut), want.end()));
        EXPECT_EQ(again.cache().cached, static_cast<int>(tokens.size()) - 1);
      }
    }
    settle(loop, 40);
    settle(elsewhere, 40);
  }
}

TEST(Snapshot, SaysWhatItCannotTake) {
  ToyModel none(limits(1, 1, 0)), model(limits(1, 1, 12));
  EngineLoop without(none), loop(model);
  const std::vector<int32_t> tokens(20, 3);
  EXPECT_EQ(Snapshot::take(without, "", tokens, 0).status().code(), Code::kUnsupported);
  const auto code = [&](int positions, int pure, size_t bytes, std::vector<int32_t> of) {
    return Snapshot::write(loop, "", of, positions, pure, std::vector<std::byte>(bytes)).status().code();
  };
  const auto block = static_cast<size_t>(model.block_bytes());
  EXPECT_EQ(code(20, 0, 2 * block, tokens), Code::kOk);
  EXPECT_EQ(code(21, 0, 2 * block, tokens), Code::kInvalidArgument);
  EXPECT_EQ(code(-1, 0, 0, tokens), Code::kInvalidArgument);
  EXPECT_EQ(code(20, 21, 2 * block, tokens), Code::kInvalidArgument);
  EXPECT_EQ(code(20, 0, 2 * block - 1, tokens), Code::kInvalidArgument);
  EXPECT_EQ(code(20, 0, 2 * block, std::vector<int32_t>(20, kVocab)), Code::kInvalidArgument);
  EXPECT_EQ(code(129, 0, 9 * block, std::vector<int32_t>(129, 3)), Code::kInvalidArgument);
  std::vector<std::unique_ptr<Snapshot>> kept;
  for (int32_t i = 0; i < 4; ++i) {  // 12 blocks, of which 8 are a whole context: 4 may be held
    auto there = Snapshot::write(loop, "", std::vector<int32_t>(20, 10 + i), 20, 20, std::vector<std::byte>(2 * block));
    ASSERT_TRUE(there.ok());
    auto made = Snapshot::take(loop, "", std::vector<int32_t>(20, 10 + i), 0, true);
    EXPECT_EQ(made.ok(), i < 2) << i;
    if (made.ok()) kept.push_back(std::move(made).value());
  }
  loop.close();
  EXPECT_EQ(Snapshot::take(loop, "", tokens, 0).status().code(), Code::kClosed);
  kept.clear();  // of a closed loop: nothing to do
}

TEST(Snapshot, BesideManyAnswers) {
  ToyModel model(limits(3, 4, 24));
  EngineLoop loop(model);
  std::atomic<int> wrong{0}, kept{0};
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    for (int turn = 0; turn < 40; ++turn) {
      const Request r = request(static_cast<unsigned>(random() % 8), 20 + static_cast<int>(random() % 30),
                                10 + static_cast<int>(random() % 20));
      const std::vector<int32_t> want = ToyModel::answer(r.prompt, r.max_tokens, kVocab);
      RequestHandle h = std::move(loop.submit(r)).value();
      std::vector<int32_t> tokens = r.prompt, got = read(h, 1 + random() % 9);
      tokens.insert(tokens.end(), got.begin(), got.end());
      const auto snapshot = Snapshot::take(loop, "", tokens, h.number(), random() % 2 == 0);
      if (snapshot.ok()) {
        ++kept;
        Request rest{tokens, r.max_tokens - static_cast<int>(got.size()), {}, {}};
        rest.resumed = true;
        RequestHandle again = std::move(loop.submit(rest)).value();
        std::vector<int32_t> all = got;
        for (const int32_t t : read(again, 100)) all.push_back(t);
        wrong += all != want;
      } else {
        wrong += snapshot.status().code() != Code::kLimitExceeded;
      }
      if (random() % 2 == 0) {
        const std::vector<int32_t> more = read(h, 100);
        got.insert(got.end(), more.begin(), more.end());
        wrong += got != want;
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(kept, 0);
  settle(loop, 24);
  EXPECT_FALSE(model.two_callers);
}

}  // namespace
}  // namespace vivace::serve
