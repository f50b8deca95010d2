// States of recurrent layers that are kept beside blocks: every answer is the one that its prompt has alone, whoever
// found what, was cancelled or gave way; what was said before is computed once; and every place comes back.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "tests/serve/toy_model.h"
#include "vivace/serve/batcher.h"
#include "vivace/serve/snapshot.h"

namespace vivace::serve {
namespace {

using testing::ToyModel;
using Miss = engine::KvBlocks::Miss;

constexpr int kVocab = 97, kBlock = 16;

engine::TextLimits limits(int max_batch, int ahead, int pages, int states, int chunk = 32) {
  return {.vocab = kVocab,
          .context = 256,
          .max_batch = max_batch,
          .prefill_chunk = chunk,
          .max_in_flight_steps = ahead,
          .mixed = ahead == 1,
          .page = kBlock,
          .pages = pages,
          .one_class = ahead == 1,
          .recurrent = true,
          .states = states};
}

std::vector<int32_t> drawn(size_t n, unsigned seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> out(n);
  for (int32_t& t : out) t = static_cast<int32_t>(random() % kVocab);
  return out;
}

struct Answered {
  std::vector<int32_t> tokens;
  Job::Cache cache;
  Finish finish = Finish::none;
};

/// One request to its end. `stop`: of tokens that its answer has.
Answered ask(Batcher& batcher, const std::vector<int32_t>& prompt, int count, std::vector<int32_t> stop = {}) {
  Job job({prompt, count, {}, std::move(stop)});
  Answered a;
  EXPECT_TRUE(check(job.request, {.vocab = kVocab, .context = 256}).ok());
  batcher.submit(job);
  std::vector<Event> events;
  for (int i = 0; a.finish == Finish::none && i < 10000; ++i) {
    const Status s = batcher.step(&events);
    EXPECT_TRUE(s.ok()) << s.to_string();
    if (!s.ok()) break;
    for (const Event& e : events) {
      if (e.token >= 0) a.tokens.push_back(e.token);
      a.finish = e.finish;
    }
  }
  a.cache = job.cache;
  return a;
}

TEST(States, APromptIsFoundAsFarAsAStateWasKept) {
  for (const size_t n : {15u, 16u, 17u, 31u, 32u, 33u, 47u, 48u, 49u, 100u}) {
    ToyModel model(limits(2, 1, 32, 16));
    Batcher batcher(model);
    const std::vector<int32_t> prompt = drawn(n, static_cast<unsigned>(n));
    const auto want = ToyModel::answer(prompt, 5, kVocab);
    for (int i = 0; i < 2; ++i) {
      const Answered a = ask(batcher, prompt, 5);
      EXPECT_EQ(a.tokens, want);
      const int found = static_cast<int>(n - 1) / kBlock * kBlock;  // its last end of a block
      EXPECT_EQ(a.cache.cached, i == 0 ? 0 : found) << n;
      const bool near = static_cast<int>(n) - 1 - found < engine::KvBlocks::kLeastCopied;  // blocks have as much
      EXPECT_EQ(a.cache.miss, i == 0 ? Miss::cold : near ? Miss::none : Miss::recurrent) << n;
    }
    std::vector<int32_t> longer = prompt;
    longer.insert(longer.end(), want.begin(), want.end());
    longer.push_back(3);
    const Answered a = ask(batcher, longer, 5);
    EXPECT_EQ(a.tokens, ToyModel::answer(longer, 5, kVocab));
    EXPECT_EQ(a.cache.cached, static_cast<int>(n) + 4) << "a turn ends where its last token was fed";
  }
}

TEST(States, WhereOthersWentOnOtherwiseAStateIsKept) {
  ToyModel model(limits(1, 1, 64, 8, 256));
  Batcher batcher(model);
  const std::vector<int32_t> common = drawn(70, 1);
  for (int i = 0; i < 4; ++i) {
    std::vector<int32_t> prompt = common, rest = drawn(60, static_cast<unsigned>(2 + i));
    prompt.insert(prompt.end(), rest.begin(), rest.end());
    const Answered a = ask(batcher, prompt, 3);
    EXPECT_EQ(a.tokens, ToyModel::answer(prompt, 3, kVocab));
    EXPECT_EQ(a.cache.cached, i < 2 ? 0 : 64) << i;
    EXPECT_EQ(a.cache.miss, i == 0 ? Miss::cold : i == 1 ? Miss::recurrent : Miss::diverged) << i;
  }
}

TEST(States, StepsThatRanAheadLeaveTheLastBlocksState) {
  ToyModel model(limits(1, 4, 32, 8));
  Batcher batcher(model);
  const std::vector<int32_t> prompt = drawn(20, 9);
  auto want = ToyModel::answer(prompt, 60, kVocab);
  size_t end = 40;
  while (std::find(want.begin(), want.begin() + static_cast<std::ptrdiff_t>(end), want[end]) <
         want.begin() + static_cast<std::ptrdiff_t>(end))
    ++end;
  const Answered a = ask(batcher, prompt, 60, {want[end]});
  want.resize(end);
  EXPECT_EQ(a.tokens, want);
  std::vector<int32_t> longer = prompt;
  longer.insert(longer.end(), want.begin(), want.end());
  longer.push_back(5);
  const Answered b = ask(batcher, longer, 3);
  EXPECT_EQ(b.tokens, ToyModel::answer(longer, 3, kVocab));
  EXPECT_GE(b.cache.cached, static_cast<int>(20 + end) / kBlock * kBlock);
}

TEST(States, WithoutPlacesNothingIsFoundAndNobodyWaits) {
  ToyModel model(limits(2, 1, 32, 0));
  Batcher batcher(model);
  const std::vector<int32_t> prompt = drawn(50, 3);
  for (int i = 0; i < 2; ++i) {
    const Answered a = ask(batcher, prompt, 5);
    EXPECT_EQ(a.tokens, ToyModel::answer(prompt, 5, kVocab));
    EXPECT_EQ(a.cache.cached, 0);
    EXPECT_EQ(a.cache.miss, i == 0 ? Miss::cold : Miss::recurrent);
  }
  EXPECT_EQ(model.copied_states, 0);
}

/// Conversations that begin alike, are cancelled, follow each other and give way to others, on few blocks and places.
TEST(States, DrawnConversations) {
  int found = 0;
  int64_t parked = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const int batch = 1 + static_cast<int>(random() % 3), ahead = random() % 2 == 0 ? 1 : 4;
    const int pages = 18 + static_cast<int>(random() % 12), states = 1 + static_cast<int>(random() % 8);
    const int chunks[] = {16, 24, 32, 80};
    ToyModel model(limits(batch, ahead, pages, states, chunks[random() % 4]));
    {
      Batcher batcher(model);
      std::map<int64_t, std::unique_ptr<Job>> jobs;
      std::map<int64_t, std::vector<int32_t>> got;
      std::vector<std::vector<int32_t>> talks(3, drawn(10 + random() % 60, seed));
      std::vector<Event> events;
      int64_t leader = -1;
      for (int turn = 0, asked = 0; asked < 30 || !batcher.idle(); ++turn) {
        ASSERT_LT(turn, 20000);
        if (asked < 30 && random() % 4 == 0) {
          std::vector<int32_t>& talk = talks[random() % talks.size()];
          if (talk.size() > 150) talk.resize(10 + random() % 100);
          if (random() % 4 > 0) talk.push_back(static_cast<int32_t>(random() % kVocab));
          Request r{talk, 1 + static_cast<int>(random() % 50), {}, {}};
          r.priority = static_cast<Priority>(random() % 3);
          r.reuse = random() % 8 > 0;
          r.deterministic = random() % 4 == 0;
          if (random() % 2 == 0) r.stop = {static_cast<int32_t>(random() % kVocab)};
          if (random() % 4 == 0 && leader >= 0 && jobs.count(leader) > 0) {
            r.prompt = jobs[leader]->request.prompt;
            r.leader = leader;
            r.priority = jobs[leader]->request.priority;
          }
          auto job = std::make_unique<Job>(r);
          const int64_t id = batcher.submit(*job);
          leader = id;
          jobs[id] = std::move(job);
          ++asked;
        }
        if (random() % 40 == 0 && !jobs.empty()) static_cast<void>(batcher.cancel(jobs.rbegin()->first));
        if (random() % 16 == 0 && !jobs.empty()) {
          ASSERT_TRUE(batcher.share(jobs.begin()->first).ok());
        }
        const Status s = batcher.step(&events);
        ASSERT_TRUE(s.ok()) << s.to_string() << " seed " << seed;
        for (const Event& e : events) {
          if (e.token >= 0) got[e.request].push_back(e.token);
          if (e.finish == Finish::none) continue;
          const Job& job = *jobs[e.request];
          auto want = ToyModel::answer(job.request.prompt, job.request.max_tokens, kVocab);
          const auto stop =
              job.request.stop.empty() ? want.end() : std::find(want.begin(), want.end(), job.request.stop.front());
          want.erase(stop, want.end());
          if (e.finish == Finish::cancelled) want.resize(std::min(want.size(), got[e.request].size()));
          ASSERT_EQ(got[e.request], want) << "seed " << seed << " request " << e.request;
          found += job.cache.cached;
          std::vector<int32_t>& talk = talks[random() % talks.size()];
          if (e.finish != Finish::cancelled) {
            talk = job.request.prompt;
            talk.insert(talk.end(), want.begin(), want.end());
          }
          jobs.erase(e.request);
        }
      }
      parked += batcher.parked();
    }
    EXPECT_EQ(model.free(), pages);
    EXPECT_EQ(model.takeable_states(), states) << "seed " << seed;
  }
  EXPECT_GT(found, 5000);
  EXPECT_GT(parked, 0);
}

TEST(States, ACapsuleHoldsThemAndBringsThemBack) {
  for (const int ahead : {1, 4}) {
    ToyModel model(limits(2, ahead, 40, 8)), other(limits(2, ahead, 40, 8));
    EngineLoop loop(model), elsewhere(other);
    for (const size_t n : {1u, 14u, 15u, 16u, 17u, 40u}) {
      const std::vector<int32_t> prompt = drawn(n, 70 + static_cast<unsigned>(n));
      const auto want = ToyModel::answer(prompt, 20, kVocab);
      RequestHandle h = std::move(loop.submit({prompt, 20, {}, {}})).value();
      std::vector<int32_t> tokens = prompt;
      Event e[1];
      for (int waited = 0; !h.over() && waited < 60;) {
        if (h.read(e) == 0)
          waited += !h.wait(std::chrono::milliseconds(1000));
        else if (e->token >= 0)
          tokens.push_back(e->token);
      }
      auto kept = Snapshot::take(loop, "", tokens, h.number(), true);
      ASSERT_TRUE(kept.ok()) << kept.status().message();
      EXPECT_EQ((*kept)->positions(), static_cast<int>(tokens.size()) - 1) << n;
      const auto bytes = (*kept)->read();
      ASSERT_TRUE(bytes.ok());
      EXPECT_EQ(static_cast<int64_t>(bytes->size()), (*kept)->bytes());
      const std::span<const std::byte> all = *bytes;
      EXPECT_EQ(
          Snapshot::write(elsewhere, "", tokens, (*kept)->positions(), 0, all.first(all.size() - 1)).status().code(),
          Code::kInvalidArgument);
      auto there = Snapshot::write(elsewhere, "", tokens, (*kept)->positions(), (*kept)->pure(), *bytes);
      ASSERT_TRUE(there.ok()) << there.status().message();
      for (EngineLoop* on : {&loop, &elsewhere}) {
        Request rest{tokens, 30, {}, {}};
        rest.resumed = true;
        RequestHandle again = std::move(on->submit(rest)).value();
        std::vector<int32_t> got;
        for (int waited = 0; !again.over() && waited < 60;) {
          if (again.read(e) == 0)
            waited += !again.wait(std::chrono::milliseconds(1000));
          else if (e->token >= 0)
            got.push_back(e->token);
        }
        EXPECT_EQ(got, ToyModel::answer(tokens, 30, kVocab));
        EXPECT_EQ(again.cache().cached, static_cast<int>(tokens.size()) - 1);
      }
    }
    // Half of the places at most are held by capsules that stay.
    std::vector<std::unique_ptr<Snapshot>> stay;
    Code code = Code::kOk;
    for (int i = 0; code == Code::kOk && i < 8; ++i) {
      const std::vector<int32_t> prompt = drawn(17, 200 + static_cast<unsigned>(i));
      RequestHandle h = std::move(loop.submit({prompt, 1, {}, {}})).value();
      Event e[1];
      for (int waited = 0; !h.over() && waited < 60;)
        if (h.read(e) == 0) waited += !h.wait(std::chrono::milliseconds(1000));
      auto taken = Snapshot::take(loop, "", prompt, 0, true);
      code = taken.status().code();
      if (taken.ok()) stay.push_back(std::move(taken).value());
    }
    EXPECT_EQ(code, Code::kLimitExceeded);
    EXPECT_EQ(stay.size(), 4u);
  }
}

}  // namespace
}  // namespace vivace::serve
