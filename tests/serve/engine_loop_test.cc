// One model, many threads. Small enough for a build of its own with ThreadSanitizer: ./test has it.
#include "vivace/serve/engine_loop.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <random>

#include "tests/serve/toy_model.h"

namespace vivace::serve {
namespace {

using std::chrono::milliseconds;
using testing::ToyModel;

engine::TextLimits limits(int max_batch, int max_in_flight_steps, int pages) {
  return {.vocab = 97,
          .context = 256,
          .max_batch = max_batch,
          .prefill_chunk = 16,
          .max_in_flight_steps = max_in_flight_steps,
          .mixed = max_in_flight_steps == 1,
          .biased = true,
          .page = pages > 0 ? 16 : 0,
          .pages = pages};
}

Request request(int32_t first, int prompt, int max_tokens) {
  Request r;
  for (int32_t i = 0; i < prompt; ++i) r.prompt.push_back((first + i * 7) % 97);
  r.max_tokens = max_tokens;
  return r;
}

/// Tokens up to the finish, or after `most` of them; -1 for a minute without news.
Finish read(RequestHandle& h, std::vector<int32_t>* tokens, size_t most = 1000) {
  Event events[5];
  while (tokens->size() < most) {
    const size_t n = h.read(events);
    for (size_t i = 0; i < n; ++i) {
      if (events[i].token >= 0) tokens->push_back(events[i].token);
      if (events[i].finish != Finish::none) return events[i].finish;
    }
    for (int waited = 0; n == 0 && !h.wait(milliseconds(1000)); ++waited)
      if (waited == 60) {
        ADD_FAILURE() << "a request hangs";
        return Finish::none;
      }
  }
  return Finish::none;
}

/// Until nothing is pending; cancelled requests end within a step.
void settle(const EngineLoop& loop) {
  for (int i = 0; i < 10000 && loop.pending() > 0; ++i) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_EQ(loop.pending(), 0);
}

TEST(EngineLoop, AnswersInOrderWithRoomForOne) {
  ToyModel model(limits(1, 1, 0));
  EngineLoop loop(model);
  std::vector<RequestHandle> handles;
  for (int i = 0; i < 5; ++i) handles.push_back(std::move(loop.submit(request(i, 20, 10))).value());
  for (int i = 4; i >= 0; --i) {
    std::vector<int32_t> got;
    EXPECT_EQ(read(handles[static_cast<size_t>(i)], &got), Finish::length);
    EXPECT_EQ(got, ToyModel::answer(request(i, 20, 10).prompt, 10, 97));
    EXPECT_TRUE(handles[static_cast<size_t>(i)].over());
  }
  EXPECT_FALSE(model.two_callers);
}

TEST(EngineLoop, AHandleThatIsLeftGivesItsPagesBack) {
  for (const int max_in_flight_steps : {1, 4}) {
    ToyModel model(limits(1, max_in_flight_steps, 8));
    EngineLoop loop(model);
    for (int i = 0; i < 20; ++i) {
      RequestHandle h = std::move(loop.submit(request(i, 30, 90))).value();
      std::vector<int32_t> got;
      if (i % 2) read(h, &got, 3);
    }
    RequestHandle h = std::move(loop.submit(request(3, 30, 90))).value();
    std::vector<int32_t> got;
    EXPECT_EQ(read(h, &got), Finish::length);
    EXPECT_EQ(got, ToyModel::answer(request(3, 30, 90).prompt, 90, 97));
    settle(loop);
    EXPECT_EQ(model.free(), 8);
  }
}

TEST(EngineLoop, RefusesMoreThanMayWait) {
  ToyModel model(limits(1, 1, 0));
  EngineLoop loop(model, {.max_waiting = 2});
  Request endless = request(1, 5, 200);
  endless.bias.assign(97, 0.0f);
  endless.stepwise = true;  // it waits for this thread
  std::vector<RequestHandle> handles;
  handles.push_back(std::move(loop.submit(endless)).value());
  for (int i = 0; i < 2; ++i) handles.push_back(std::move(loop.submit(request(i, 5, 5))).value());
  const auto more = loop.submit(request(9, 5, 5));
  EXPECT_EQ(more.status().code(), Code::kLimitExceeded);
  EXPECT_NE(more.status().message().find("3 requests answer or wait already, 1 at once and 2 waiting are the most"),
            std::string::npos)
      << more.status().message();
  EXPECT_EQ(loop.direct().status().code(), Code::kFailedPrecondition);
  handles.clear();
  const auto alone = loop.direct();  // waits for those that were cancelled
  EXPECT_TRUE(alone.ok());
  EXPECT_EQ(loop.pending(), 0);
}

TEST(EngineLoop, AFailedStepEndsThoseThatAnswerAndNobodyElse) {
  ToyModel model(limits(2, 1, 0));
  model.fail_at = 4;
  EngineLoop loop(model);
  std::vector<RequestHandle> handles;
  for (int i = 0; i < 4; ++i) handles.push_back(std::move(loop.submit(request(i, 5, 8))).value());
  int failed = 0;
  for (int i = 0; i < 4; ++i) {
    std::vector<int32_t> got;
    RequestHandle& h = handles[static_cast<size_t>(i)];
    if (read(h, &got) == Finish::error) {
      ++failed;
      EXPECT_EQ(h.status().message(), "planned");
    } else {
      EXPECT_EQ(got, ToyModel::answer(request(i, 5, 8).prompt, 8, 97));
    }
  }
  EXPECT_GE(failed, 1);
  EXPECT_LE(failed, 2);
}

TEST(EngineLoop, CloseEndsAllAndRefusesMore) {
  ToyModel model(limits(2, 4, 8));
  std::vector<RequestHandle> handles;
  {
    EngineLoop loop(model);
    Request r = request(0, 5, 20);
    r.bias.assign(97, 0.0f);
    r.stepwise = true;
    for (int i = 0; i < 6; ++i) handles.push_back(std::move(loop.submit(r)).value());
    loop.close();
    EXPECT_EQ(loop.submit(r).status().code(), Code::kClosed);
    EXPECT_EQ(loop.direct().status().code(), Code::kClosed);
  }
  for (RequestHandle& h : handles) {
    std::vector<int32_t> got;
    EXPECT_EQ(read(h, &got), Finish::error);
    EXPECT_EQ(h.status().code(), Code::kClosed);
  }
  EXPECT_EQ(model.free(), 8);
}

/// Beside others, where answers and prompts share steps and where they do not: each draw has its own likeliest tokens.
TEST(EngineLoop, TopLogprobsAreOfTheirOwnDraw) {
  for (const auto& [max_in_flight_steps, pages] : {std::pair{1, 0}, {4, 0}, {1, 48}, {4, 48}}) {
    ToyModel model(limits(3, max_in_flight_steps, pages));
    EngineLoop loop(model);
    std::vector<RequestHandle> handles;
    const auto asked = [](int i) {
      Request r = request(i, 4 + 13 * (i % 3), 5 + 7 * (i % 4));
      r.top_logprobs = i % 4 == 3 ? 0 : 1 + (i * 9) % 20;
      return r;
    };
    for (int i = 0; i < 12; ++i) handles.push_back(std::move(loop.submit(asked(i))).value());
    for (int i = 0; i < 12; ++i) {
      RequestHandle& h = handles[static_cast<size_t>(i)];
      const Request r = asked(i);
      std::vector<int32_t> got;
      Event e[1];
      while (!h.over()) {
        if (h.read(e) == 0) {
          h.wait(milliseconds(1000));
          continue;
        }
        if (e->token < 0) continue;
        got.push_back(e->token);
        ASSERT_EQ(e->top.size(), static_cast<size_t>(r.top_logprobs));
        for (int k = 0; k < r.top_logprobs; ++k) {
          EXPECT_EQ(e->top[static_cast<size_t>(k)].token, (e->token + k) % 97);
          EXPECT_EQ(e->top[static_cast<size_t>(k)].logprob, -static_cast<float>(k));
        }
      }
      EXPECT_EQ(got, ToyModel::answer(r.prompt, r.max_tokens, 97));
    }
    Request wrong = asked(0);
    wrong.top_logprobs = kMaxTopLogprobs + 1;
    EXPECT_EQ(loop.submit(wrong).status().code(), Code::kInvalidArgument);
  }
}

/// For VV_STRESS_SECONDS (3): threads that submit, read, leave, cancel from aside, bias, draft and step directly. Each
/// answer that ends is the one that its prompt has alone, and everything comes back.
TEST(EngineLoop, ManyThreadsOfAllKinds) {
  const char* wanted = std::getenv("VV_STRESS_SECONDS");
  const double seconds = wanted != nullptr ? std::atof(wanted) : 3;
  for (const auto& [max_batch, max_in_flight_steps, pages] :
       {std::tuple{1, 1, 0}, {3, 4, 0}, {4, 1, 24}, {4, 4, 24}, {2, 2, 17}}) {
    ToyModel model(limits(max_batch, max_in_flight_steps, pages));
    EngineLoop loop(model, {.max_waiting = 4});
    std::atomic<int> wrong{0}, finished{0}, left{0}, refused{0}, direct{0};
    std::atomic<bool> stop{false};
    const auto work = [&](unsigned seed) {
      std::mt19937 random(seed);
      const auto one_of = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
      while (!stop) {
        const int kind = one_of(8);
        if (kind == 0) {
          if (const auto alone = loop.direct(); alone.ok()) ++direct;
          continue;
        }
        Request r = request(one_of(97), 1 + one_of(40), 1 + one_of(40));
        const std::vector<int32_t> want = ToyModel::answer(r.prompt, r.max_tokens, 97);
        EngineLoop::Submit how;
        if (kind == 1) r.bias.assign(97, 0.0f), r.stepwise = true;
        if (kind == 2 && max_batch > 2)
          how.drafter = std::make_shared<PromptLookup>(), r.num_speculative_tokens = 1 + one_of(max_batch - 1);
        const bool stepwise = r.stepwise;
        auto made = loop.submit(std::move(r), std::move(how));
        if (!made.ok()) {
          refused += made.status().code() == Code::kLimitExceeded;
          wrong += made.status().code() != Code::kLimitExceeded;
          std::this_thread::yield();
          continue;
        }
        RequestHandle h = std::move(made).value();
        std::thread aside;
        if (kind == 3) aside = std::thread([&h] { h.cancel(); });
        std::vector<int32_t> got;
        Finish finish = Finish::none;
        const size_t most = kind == 4 ? static_cast<size_t>(one_of(10)) : 1000;
        if (stepwise) {
          const std::vector<float> plain(97, 0.0f);
          while (finish == Finish::none && got.size() < want.size()) {
            const size_t before = got.size();
            finish = read(h, &got, before + 1);
            if (finish == Finish::none && !h.set_bias(plain).ok()) ++wrong;
            if (finish == Finish::none && one_of(30) == 0) break;
          }
        } else {
          finish = read(h, &got, most);
        }
        if (aside.joinable()) aside.join();
        if (finish == Finish::length ? got != want : !std::equal(got.begin(), got.end(), want.begin())) ++wrong;
        if (finish == Finish::length) ++finished;
        else ++left;
      }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 8; ++i) threads.emplace_back(work, i + static_cast<unsigned>(100 * max_batch));
    std::this_thread::sleep_for(std::chrono::duration<double>(seconds / 5));
    stop = true;
    for (std::thread& t : threads) t.join();
    settle(loop);
    EXPECT_EQ(wrong, 0);
    EXPECT_FALSE(model.two_callers);
    EXPECT_EQ(model.free(), pages);
    EXPECT_GT(finished, 20);
    EXPECT_GT(left, 5);
    std::printf("max_batch %d ahead %d pages %d: %d finished, %d left, %d refused, %d direct\n", max_batch,
                max_in_flight_steps, pages, finished.load(), left.load(), refused.load(), direct.load());
  }
}

}  // namespace
}  // namespace vivace::serve
