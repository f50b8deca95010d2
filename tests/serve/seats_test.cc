// Seats: blocks that grow as answers do, who gives way, who may pass. Every answer is the one that its prompt has
// alone, whatever happened to it on the way, and every block comes back.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "tests/serve/toy_model.h"
#include "vivace/serve/batcher.h"

namespace vivace::serve {
namespace {

using testing::ToyModel;

constexpr int kVocab = 97;

engine::TextLimits limits(int max_batch, int max_in_flight_steps, int pages) {
  return {.vocab = kVocab,
          .context = 256,
          .max_batch = max_batch,
          .prefill_chunk = 16,
          .max_in_flight_steps = max_in_flight_steps,
          .mixed = max_in_flight_steps == 1,
          .biased = true,
          .page = pages > 0 ? 16 : 0,
          .pages = pages};
}

Request request(int32_t first, int prompt, int max_tokens, Priority priority = Priority::interactive) {
  Request r;
  for (int32_t i = 0; i < prompt; ++i) r.prompt.push_back((first + i * 7) % kVocab);
  r.max_tokens = max_tokens;
  r.priority = priority;
  return r;
}

/// Steps until everything is over; what each request was answered with, and the order in which they ended.
struct Log {
  std::map<int64_t, std::vector<int32_t>> tokens;
  std::map<int64_t, Finish> finish;
  std::vector<int64_t> ended;
  std::vector<Event> events;

  ::testing::AssertionResult step(Batcher& batcher) {
    if (const Status s = batcher.step(&events); !s.ok()) return ::testing::AssertionFailure() << s.to_string();
    for (const Event& e : events) {
      if (e.token >= 0) tokens[e.request].push_back(e.token);
      if (e.finish != Finish::none) finish[e.request] = e.finish, ended.push_back(e.request);
    }
    return ::testing::AssertionSuccess();
  }
  ::testing::AssertionResult all(Batcher& batcher) {
    for (int steps = 0; !batcher.idle(); ++steps) {
      if (steps > 100000) return ::testing::AssertionFailure() << "it never ends";
      if (auto s = step(batcher); !s) return s;
    }
    return ::testing::AssertionSuccess();
  }
};

TEST(Seats, AnswersTakeBlocksAsTheyGrow) {
  ToyModel model(limits(4, 1, 8));
  Batcher batcher(model);
  Log run;
  std::vector<Request> asked;
  for (int i = 0; i < 4; ++i) {
    asked.push_back(request(i, 10, 100));  // 7 blocks each at the end, 1 at first
    ASSERT_TRUE(batcher.submit(asked.back()).ok());
  }
  ASSERT_TRUE(run.step(batcher));
  EXPECT_EQ(model.free(), 4) << "all four have begun";
  ASSERT_TRUE(run.all(batcher));
  for (int i = 0; i < 4; ++i)
    EXPECT_EQ(run.tokens[i], ToyModel::answer(asked[static_cast<size_t>(i)].prompt, 100, kVocab)) << i;
  EXPECT_EQ(run.ended.front(), 0) << "the oldest never gives way";
  EXPECT_GT(batcher.parked(), 0);
  EXPECT_EQ(model.free(), 8);
}

TEST(Seats, ALowerClassGivesWay) {
  for (const auto& [max_batch, max_in_flight_steps] : {std::pair{1, 1}, {3, 1}, {1, 4}, {2, 4}}) {
    ToyModel model(limits(max_batch, max_in_flight_steps, 8));
    Batcher batcher(model);
    Log run;
    const Request slow = request(1, 20, 90, Priority::batch), fast = request(2, 60, 20, Priority::robot);
    for (int i = 0; i < 2; ++i) ASSERT_TRUE(batcher.submit(slow).ok());
    for (int i = 0; i < 30; ++i) ASSERT_TRUE(run.step(batcher));
    const int64_t robot = *batcher.submit(fast);
    ASSERT_TRUE(run.step(batcher));
    ASSERT_TRUE(run.all(batcher));
    EXPECT_EQ(run.ended.front(), robot);
    EXPECT_GT(batcher.parked(), 0);
    EXPECT_EQ(run.tokens[robot], ToyModel::answer(fast.prompt, 20, kVocab));
    for (int i = 0; i < 2; ++i) EXPECT_EQ(run.tokens[i], ToyModel::answer(slow.prompt, 90, kVocab));
  }
}

TEST(Seats, WhoNeedsManyIsPassedByAFewOnly) {
  ToyModel model(limits(3, 1, 8));
  Batcher batcher(model);
  Log run;
  ASSERT_TRUE(batcher.submit(request(0, 10, 110)).ok());
  ASSERT_TRUE(run.step(batcher));
  const int64_t many = *batcher.submit(request(1, 110, 10));
  int before = 0;
  for (int i = 0; i < 60; ++i) ASSERT_TRUE(batcher.submit(request(i, 5, 4)).ok());
  while (run.finish.count(many) == 0) ASSERT_TRUE(run.step(batcher));
  for (const int64_t id : run.ended) before += id > many;
  EXPECT_GE(before, 5) << "small ones were held up";
  EXPECT_LE(before, 17) << "and too many passed";
  ASSERT_TRUE(run.all(batcher));
}

/// A clock that goes on when a test says so.
struct Clock {
  static inline std::chrono::steady_clock::time_point time;
  static std::chrono::steady_clock::time_point now() { return time; }
};

constexpr Ageing kAgeing{std::chrono::seconds(10), &Clock::now};

/// Callers of one class without end, each asking again as soon as it was answered: without ageing the next class waits
/// for ever.
TEST(Seats, NobodyWaitsForEver) {
  for (const int pages : {0, 8})
    for (const int max_in_flight_steps : {1, 4}) {
      for (const bool ages : {true, false}) {
        ToyModel model(limits(2, max_in_flight_steps, pages));
        Batcher batcher(model, 0, ages ? kAgeing : Ageing{{}, &Clock::now});
        Log run;
        for (int i = 0; i < 5; ++i) ASSERT_TRUE(batcher.submit(request(i, 9, 6)).ok());
        const Request asked = request(50, 20, 8, Priority::batch);
        const auto began = Clock::time;
        const int64_t slow = *batcher.submit(asked);
        size_t answered = 0;
        while (Clock::time < began + std::chrono::seconds(40) && run.finish.count(slow) == 0) {
          Clock::time += std::chrono::milliseconds(50);
          ASSERT_TRUE(run.step(batcher));
          for (; answered < run.ended.size(); ++answered)
            ASSERT_TRUE(batcher.submit(request(static_cast<int32_t>(answered % kVocab), 9, 6)).ok());
        }
        EXPECT_EQ(run.finish.count(slow) > 0, ages) << "pages " << pages;
        if (!ages) continue;
        EXPECT_GE(Clock::time - began, kAgeing.after) << "it went before its turn";
        EXPECT_LT(Clock::time - began, kAgeing.after + std::chrono::seconds(3));
        EXPECT_EQ(run.tokens[slow], ToyModel::answer(asked.prompt, 8, kVocab));
      }
    }
}

/// Whoever began first of those that are of a class by now; nobody before a robot, whatever he waited.
TEST(Seats, RobotsGoBeforeWhoHasRisen) {
  ToyModel model(limits(1, 1, 8));
  Batcher batcher(model, 0, kAgeing);
  Log run;
  ASSERT_TRUE(batcher.submit(request(0, 5, 100)).ok());
  ASSERT_TRUE(run.step(batcher));
  const int64_t slow = *batcher.submit(request(1, 5, 30, Priority::batch));
  const int64_t early = *batcher.submit(request(2, 5, 4));
  Clock::time += kAgeing.after;
  ASSERT_TRUE(run.step(batcher));
  const int64_t late = *batcher.submit(request(3, 5, 4));
  Clock::time += 100 * kAgeing.after;
  while (run.finish.count(0) == 0) ASSERT_TRUE(run.step(batcher));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(run.step(batcher));
  const int64_t robot = *batcher.submit(request(4, 5, 4, Priority::robot));
  ASSERT_TRUE(run.all(batcher));
  EXPECT_EQ(run.ended, (std::vector<int64_t>{0, robot, slow, early, late}));
  EXPECT_EQ(run.tokens[slow], ToyModel::answer(request(1, 5, 30).prompt, 30, kVocab)) << "it gave way and went on";
}

/// Drawn loads on drawn pools: each request is over some time after it has risen, and each answer is its own.
TEST(Seats, RandomLoadsStarveNobody) {
  int risen = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int max_batch = 1 + one_of(4), pages = one_of(3) ? 8 + one_of(10) : 0, flight = one_of(2) ? 4 : 1;
    ToyModel model(limits(max_batch, flight, pages));
    Batcher batcher(model, 0, kAgeing);
    Log run;
    std::map<int64_t, Request> asked;
    std::map<int64_t, std::chrono::steady_clock::time_point> came;
    const auto ask = [&](Priority priority) {
      const Request r = request(one_of(kVocab), 1 + one_of(60), 1 + one_of(20), priority);
      const int64_t id = *batcher.submit(r);
      asked.emplace(id, r), came.emplace(id, Clock::time);
    };
    for (int i = 0; i < 3 * max_batch; ++i) ask(Priority::interactive);  // as many as wait at any time
    for (int i = 0; i < 1 + one_of(5); ++i) ask(Priority::batch);
    size_t answered = 0;
    const auto end = Clock::time + std::chrono::seconds(60);
    while (Clock::time < end) {
      Clock::time += std::chrono::milliseconds(one_of(60));
      ASSERT_TRUE(run.step(batcher)) << "seed " << seed;
      for (; answered < run.ended.size(); ++answered) {
        const int64_t id = run.ended[answered];
        const Request& r = asked.at(id);
        ASSERT_EQ(run.tokens[id], ToyModel::answer(r.prompt, r.max_tokens, kVocab)) << "seed " << seed;
        const auto took = Clock::time - came.at(id);
        risen += r.priority == Priority::batch && took >= kAgeing.after;
        ASSERT_LT(took, kAgeing.after + std::chrono::seconds(40)) << "seed " << seed << " request " << id;
        ask(r.priority);
      }
    }
    for (const auto& [id, r] : asked)
      ASSERT_TRUE(run.finish.count(id) > 0 || Clock::time - came.at(id) < kAgeing.after + std::chrono::seconds(40))
          << "seed " << seed;
  }
  EXPECT_GT(risen, 50) << "nobody had to rise";
}

TEST(Seats, DeadlinesEndWhatIsLate) {
  ToyModel model(limits(1, 1, 8));
  Batcher batcher(model);
  Log run;
  Request late = request(1, 5, 100);
  late.deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(1);
  Job job(late);
  batcher.submit(job);
  ASSERT_TRUE(run.step(batcher));
  std::this_thread::sleep_for(std::chrono::milliseconds(2));
  ASSERT_TRUE(run.step(batcher));
  EXPECT_EQ(run.finish[job.id], Finish::error);
  EXPECT_EQ(job.status.code(), Code::kLimitExceeded);
  EXPECT_NE(job.status.message().find("the deadline passed after 1 of at most 100 tokens"), std::string::npos)
      << job.status.message();
  EXPECT_EQ(model.free(), 8);
}

/// Requests of all lengths and classes, of which some are cancelled, masked or guessed at, on pools that hold little
/// more than one.
TEST(Seats, RandomRequestsOnTinyPools) {
  int64_t parked = 0;
  for (unsigned seed = 0; seed < 60; ++seed) {
    std::mt19937 random(seed);
    const auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int pages = 8 + one_of(10), max_in_flight_steps = one_of(2) ? 4 : 1, max_batch = 1 + one_of(5);
    ToyModel model(limits(max_batch, max_in_flight_steps, pages));
    PromptLookup lookup;
    {
      Batcher batcher(model);
      Log run;
      std::map<int64_t, Request> asked;
      std::map<int64_t, size_t> biased;
      for (int round = 0; round < 400; ++round) {
        if (asked.size() < 50 && one_of(4) == 0) {
          Request r = request(one_of(kVocab), 1 + one_of(90), 1 + one_of(39), static_cast<Priority>(one_of(3)));
          const int kind = one_of(5);
          if (kind == 0) r.bias.assign(kVocab, 0.0f), r.stepwise = true;
          if (kind == 1 && max_batch > 2) r.drafter = &lookup, r.num_speculative_tokens = 1 + one_of(max_batch - 1);
          auto id = batcher.submit(r);
          ASSERT_TRUE(id.ok()) << id.status().to_string();
          asked.emplace(*id, std::move(r));
        }
        if (one_of(40) == 0 && !asked.empty())
          static_cast<void>(batcher.cancel(one_of(static_cast<int>(asked.size()))));
        ASSERT_TRUE(run.step(batcher)) << "seed " << seed;
        for (const auto& [id, r] : asked)
          if (r.stepwise && run.finish.count(id) == 0 && run.tokens[id].size() > biased[id] && one_of(2)) {
            ASSERT_TRUE(batcher.set_bias(id, std::vector<float>(kVocab, 0.0f)).ok()) << "seed " << seed;
            biased[id] = run.tokens[id].size();
          }
      }
      for (int steps = 0; !batcher.idle(); ++steps) {
        ASSERT_LT(steps, 20000) << "seed " << seed;
        ASSERT_TRUE(run.step(batcher)) << "seed " << seed;
        for (const auto& [id, r] : asked)
          if (r.stepwise && run.finish.count(id) == 0 && run.tokens[id].size() > biased[id]) {
            ASSERT_TRUE(batcher.set_bias(id, std::vector<float>(kVocab, 0.0f)).ok());
            biased[id] = run.tokens[id].size();
          }
      }
      for (const auto& [id, r] : asked) {
        auto want = ToyModel::answer(r.prompt, r.max_tokens, kVocab);
        ASSERT_TRUE(run.finish[id] == Finish::length || run.finish[id] == Finish::cancelled) << "seed " << seed;
        if (run.finish[id] == Finish::cancelled) want.resize(run.tokens[id].size());
        ASSERT_EQ(run.tokens[id], want) << "seed " << seed << " request " << id;
      }
      parked += batcher.parked();
    }
    ASSERT_EQ(model.free(), pages) << "seed " << seed;
  }
  EXPECT_GT(parked, 100) << "the pools were too large to prove anything";
}

/// Prompts of a few conversations that begin alike, as their turns would be.
struct Talk {
  std::string salt;
  std::vector<int32_t> said;
};

TEST(Reuse, AConversationIsComputedOnce) {
  ToyModel model(limits(2, 1, 16));
  Batcher batcher(model);
  Log run;
  std::vector<int32_t> context;
  for (int turn = 0; turn < 6; ++turn) {
    Request r = request(turn, 10, 7);
    r.prompt.insert(r.prompt.begin(), context.begin(), context.end());
    Job job(r);
    batcher.submit(job);
    const size_t before = context.size();
    ASSERT_TRUE(run.all(batcher));
    ASSERT_EQ(run.tokens[job.id], ToyModel::answer(r.prompt, 7, kVocab));
    EXPECT_LE(job.cache.cached, turn > 0 ? static_cast<int>(before) - 1 : 0) << "the last token drawn was never fed";
    EXPECT_GE(job.cache.cached, static_cast<int>(before) - 8) << "seven positions are not worth a block's copy";
    EXPECT_EQ(job.cache.cached + job.cache.written, static_cast<int>(before) + 16);
    EXPECT_EQ(job.cache.miss, turn > 0 ? engine::KvBlocks::Miss::none : engine::KvBlocks::Miss::cold);
    context = r.prompt;
    context.insert(context.end(), run.tokens[job.id].begin(), run.tokens[job.id].end());
  }
  EXPECT_EQ(model.free(), 16);
}

TEST(Reuse, NobodyFindsWhatAnotherComputed) {
  ToyModel model(limits(2, 1, 16));
  Batcher batcher(model);
  Log run;
  Request r = request(3, 60, 5);
  for (const char* salt : {"", "a", "b", "a", "ab"}) {
    r.salt = salt;
    Job job(r);
    batcher.submit(job);
    ASSERT_TRUE(run.all(batcher));
    EXPECT_EQ(run.tokens[job.id], ToyModel::answer(r.prompt, 5, kVocab));
    EXPECT_EQ(job.cache.cached > 0, job.id == 3) << salt << ": only the second of the same";
    EXPECT_NE(job.cache.miss == engine::KvBlocks::Miss::cold, job.id == 3) << "and hears no more than that";
  }
  r.salt = "a", r.reuse = false;
  Job job(r);
  batcher.submit(job);
  ASSERT_TRUE(run.all(batcher));
  EXPECT_EQ(job.cache.cached + job.cache.written, 0);
  EXPECT_EQ(job.cache.miss, engine::KvBlocks::Miss::off);
}

/// What a guess or a step queued ahead of a stop wrote is nobody's.
TEST(Reuse, NothingBehindAStopIsFound) {
  for (const int max_in_flight_steps : {1, 4}) {
    ToyModel model(limits(1, max_in_flight_steps, 16));
    Batcher batcher(model);
    Log run;
    Request r = request(5, 20, 60);
    const auto want = ToyModel::answer(r.prompt, 60, kVocab);
    r.stop = {want[20]};
    Job first(r);
    batcher.submit(first);
    ASSERT_TRUE(run.all(batcher));
    const size_t came = run.tokens[first.id].size();
    r.prompt.insert(r.prompt.end(), want.begin(), want.end());
    r.stop.clear(), r.max_tokens = 5;
    Job job(r);
    batcher.submit(job);
    ASSERT_TRUE(run.all(batcher));
    EXPECT_EQ(job.cache.cached, static_cast<int>(20 + came));
    EXPECT_EQ(run.tokens[job.id], ToyModel::answer(r.prompt, 5, kVocab));
  }
}

TEST(Reuse, RandomConversationsOnTinyPools) {
  int64_t cached = 0, prompts = 0, parked = 0;
  for (unsigned seed = 0; seed < 40; ++seed) {
    std::mt19937 random(seed);
    const auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
    const int pages = 12 + one_of(30), max_in_flight_steps = one_of(2) ? 4 : 1, max_batch = 1 + one_of(4);
    ToyModel model(limits(max_batch, max_in_flight_steps, pages));
    PromptLookup lookup;
    std::vector<Talk> talks(6);
    for (size_t i = 0; i < talks.size(); ++i) {
      talks[i].salt = i % 2 ? "a" : "b";
      talks[i].said = request(static_cast<int32_t>(i / 4), 1 + one_of(50), 1).prompt;
    }
    {
      Batcher batcher(model);
      Log run;
      std::map<int64_t, std::unique_ptr<Job>> jobs;
      std::map<int64_t, size_t> of;
      const auto settle = [&] {
        for (auto it = jobs.begin(); it != jobs.end();) {
          const auto& [id, job] = *it;
          if (run.finish.count(id) == 0) {
            ++it;
            continue;
          }
          const Request& r = job->request;
          auto want = ToyModel::answer(r.prompt, r.max_tokens, kVocab);
          const auto stop = std::find_if(want.begin(), want.end(), [&](int32_t t) {
            return std::find(r.stop.begin(), r.stop.end(), t) != r.stop.end();
          });
          if (run.finish[id] != Finish::length)
            want.resize(run.finish[id] == Finish::stop ? static_cast<size_t>(stop - want.begin())
                                                       : run.tokens[id].size());
          ASSERT_EQ(run.tokens[id], want) << "seed " << seed << " request " << id;
          ASSERT_LT(job->cache.cached, static_cast<int>(r.prompt.size()));
          cached += job->cache.cached, prompts += static_cast<int64_t>(r.prompt.size());
          Talk& talk = talks[of[id]];
          if (talk.said.size() < 140 && one_of(3))
            talk.said = r.prompt, talk.said.insert(talk.said.end(), want.begin(), want.end());
          it = jobs.erase(it);
        }
      };
      for (int round = 0; round < 600 || !jobs.empty(); ++round) {
        ASSERT_LT(round, 20000) << "seed " << seed;
        if (round < 600 && jobs.size() < 12 && one_of(3) == 0) {
          const auto at = static_cast<size_t>(one_of(static_cast<int>(talks.size())));
          Request r = request(one_of(4), 1 + one_of(20), 1 + one_of(25), static_cast<Priority>(one_of(3)));
          r.prompt.insert(r.prompt.begin(), talks[at].said.begin(), talks[at].said.end());
          if (one_of(3) == 0)
            r.prompt.resize(
                static_cast<size_t>(1 + one_of(static_cast<int>(r.prompt.size()))));  // said anew from somewhere on
          r.salt = talks[at].salt, r.deterministic = one_of(2), r.reuse = one_of(8) > 0;
          if (one_of(3) == 0) r.stop = {one_of(kVocab), one_of(kVocab), one_of(kVocab)};
          if (max_batch > 2 && one_of(4) == 0)
            r.drafter = &lookup, r.num_speculative_tokens = 1 + one_of(max_batch - 1);
          if (static_cast<int>(r.prompt.size()) + r.max_tokens > pages * 16) continue;
          for (int fork = one_of(4) ? 1 : 3, leader = -1; fork > 0; --fork) {
            r.leader = leader;
            auto job = std::make_unique<Job>(r);
            ASSERT_TRUE(check(r, model.limits()).ok());
            const int64_t id = batcher.submit(*job);
            if (leader < 0) leader = static_cast<int>(id);
            of[id] = at;
            jobs[id] = std::move(job);
          }
        }
        if (one_of(30) == 0 && !jobs.empty()) static_cast<void>(batcher.cancel(jobs.begin()->first));
        ASSERT_TRUE(run.step(batcher)) << "seed " << seed;
        settle();
        if (::testing::Test::HasFatalFailure()) return;
      }
      parked += batcher.parked();
    }
    ASSERT_EQ(model.free(), pages) << "seed " << seed;
  }
  EXPECT_GT(cached, prompts / 5) << "too little was found to prove anything";
  EXPECT_GT(parked, 50);
  std::printf("%ld of %ld prompt tokens were found, %ld answers moved\n", static_cast<long>(cached),
              static_cast<long>(prompts), static_cast<long>(parked));
}

/// n answers to one prompt compute it once.
TEST(Reuse, ForksWaitForTheirPrompt) {
  ToyModel model(limits(4, 1, 16));
  Batcher batcher(model);
  Log run;
  std::vector<std::unique_ptr<Job>> jobs;
  Request r = request(1, 60, 5);
  for (int i = 0; i < 4; ++i) {
    jobs.push_back(std::make_unique<Job>(r));
    r.leader = i == 0 ? batcher.submit(*jobs[0]) : (batcher.submit(*jobs.back()), r.leader);
  }
  ASSERT_TRUE(run.all(batcher));
  for (int i = 0; i < 4; ++i) {
    EXPECT_EQ(jobs[static_cast<size_t>(i)]->cache.cached, i == 0 ? 0 : 59);
    EXPECT_EQ(run.tokens[i], ToyModel::answer(r.prompt, 5, kVocab));
  }
}

}  // namespace
}  // namespace vivace::serve
