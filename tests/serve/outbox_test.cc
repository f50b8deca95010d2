// The outbox with many streams, slow readers and clients that leave, of a model that only counts. Also with
// ThreadSanitizer.
#include "vivace/serve/outbox.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/serve/toy_model.h"

namespace vivace::serve {
namespace {

using std::chrono::milliseconds;
using testing::ToyModel;

constexpr int kVocab = 97;

engine::TextLimits limits(int max_in_flight_steps) {
  return {.vocab = kVocab,
          .context = 256,
          .max_batch = 4,
          .prefill_chunk = 16,
          .max_in_flight_steps = max_in_flight_steps,
          .mixed = max_in_flight_steps == 1,
          .biased = true,
          .page = 16,
          .pages = 64};
}

/// Token t is the letters of t, so that what is written can be read back.
std::string word(int32_t t) { return strf("<%d>", t); }

TokenBytes words() {
  std::vector<std::string> all;
  for (int32_t t = 0; t < kVocab; ++t) all.push_back(word(t));
  return TokenBytes(all, false);
}

Request request(unsigned first, int prompt, int max_tokens) {
  Request r;
  for (int i = 0; i < prompt; ++i)
    r.prompt.push_back(static_cast<int32_t>((first + static_cast<unsigned>(i) * 7) % kVocab));
  r.max_tokens = max_tokens;
  return r;
}

std::string told(const Request& r) {
  std::string all;
  for (const int32_t t : ToyModel::answer(r.prompt, r.max_tokens, kVocab)) all += word(t);
  return all;
}

/// The texts of records of choice `i`, joined; `finish` becomes what its last record says.
std::string text_of(const std::string& records, int i, std::string* finish) {
  std::string all;
  const std::string head = strf("{\"i\":%d,\"k\":\"", i);
  for (size_t at = 0; at < records.size();) {
    const size_t end = records.find('\n', at);
    const std::string line = records.substr(at, end - at);
    at = end == std::string::npos ? records.size() : end + 1;
    if (line.rfind(head, 0) != 0) continue;
    const size_t from = line.find(",\"t\":\"") + 6, to = line.find("\",\"n\":");
    (line.compare(head.size(), 6, "finish") == 0 ? *finish : all) += line.substr(from, to - from);
  }
  return all;
}

/// Everything of a stream, or as much as comes until the reader has had enough; `pause`: how slow it is.
std::string read(ReplyStream& s, Notifier& bell, milliseconds pause, size_t enough) {
  std::string all;
  for (int waited = 0; !s.over() && all.size() < enough && waited < 60;) {
    const uint32_t seen = bell.now();
    if (s.unread()) all += s.read();
    else waited += bell.now() == seen ? (bell.wait(seen, milliseconds(1000)), bell.now() == seen) : 0;
    if (pause.count() > 0) std::this_thread::sleep_for(pause);
  }
  return all;
}

TEST(Outbox, ManyStreamsSlowReadersAndThoseWhoLeave) {
  for (const int ahead : {1, 4}) {
    ToyModel model(limits(ahead));
    EngineLoop loop(model, {.max_waiting = 64});
    auto made = Outbox::make(loop, words());
    ASSERT_TRUE(made.ok());
    Outbox& box = **made;
    std::atomic<int> wrong{0}, whole{0}, left{0};
    const auto work = [&](unsigned seed) {
      std::mt19937 random(seed);
      const auto bell = std::make_shared<Notifier>();
      for (int turn = 0; turn < 25; ++turn) {
        const Request r = request(static_cast<unsigned>(random() % kVocab), 1 + static_cast<int>(random() % 40),
                                  1 + static_cast<int>(random() % 60));
        const size_t choices = 1 + random() % 3;
        WireOptions wire;
        wire.whole = random() % 3 == 0;
        wire.logprobs = random() % 2 == 0;
        std::vector<Choice> all;
        for (size_t i = 0; i < choices; ++i) {
          auto handle = loop.submit(r, {.notifier = box.bell()});
          if (!handle.ok()) break;
          Choice c;
          c.handle = std::move(handle).value();
          all.push_back(std::move(c));
        }
        const size_t count = all.size();
        if (count == 0) continue;
        auto opened = box.open(std::move(all), std::move(wire), bell);
        ASSERT_TRUE(opened.ok());
        const bool leaves = random() % 4 == 0;
        const std::string got =
            read(*opened, *bell, milliseconds(random() % 3), leaves ? random() % 200 : std::string::npos);
        if (leaves) {
          ++left;
          if (random() % 2 == 0) std::thread([&] { opened->cancel(); }).join();
          continue;
        }
        ++whole;
        wrong += !opened->status().ok();
        for (size_t i = 0; i < count; ++i) {
          std::string finish;
          wrong += text_of(got, static_cast<int>(i), &finish) != told(r) || finish != "length";
        }
        wrong += opened->tokens() != static_cast<int>(count) * r.max_tokens;
        for (const Job::Cache& c : opened->cache())
          wrong += c.cached < 0 || c.cached >= static_cast<int>(r.prompt.size());
      }
    };
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < 6; ++i) threads.emplace_back(work, i);
    for (std::thread& t : threads) t.join();
    EXPECT_EQ(wrong, 0);
    EXPECT_GT(whole, 0);
    EXPECT_GT(left, 0);
    for (int i = 0; i < 10000 && (loop.pending() > 0 || loop.blocks().available != 64); ++i)
      std::this_thread::sleep_for(milliseconds(1));
    EXPECT_EQ(loop.pending(), 0);
    EXPECT_EQ(loop.blocks().available, 64);
    EXPECT_GT(box.counts().length, 0);
    made->reset();
    EXPECT_FALSE(model.two_callers);
  }
}

TEST(Outbox, TheEngineMayEndFirst) {
  ToyModel model(limits(4));
  auto loop = std::make_unique<EngineLoop>(model);
  auto made = Outbox::make(*loop, words());
  ASSERT_TRUE(made.ok());
  const auto bell = std::make_shared<Notifier>();
  std::vector<Choice> one(1);
  one[0].handle = std::move(loop->submit(request(1, 5, 200), {.notifier = (*made)->bell()})).value();
  auto opened = (*made)->open(std::move(one), {}, bell);
  ASSERT_TRUE(opened.ok());
  loop->close();
  static_cast<void>(read(*opened, *bell, milliseconds(0), std::string::npos));
  EXPECT_TRUE(opened->over());
  EXPECT_TRUE(opened->status().ok() || opened->status().code() == Code::kClosed);  // it may have been over before
  made->reset();
}

}  // namespace
}  // namespace vivace::serve
