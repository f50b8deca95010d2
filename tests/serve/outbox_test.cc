// The outbox with many streams, slow readers and clients that leave, of a model that only counts. Also with
// ThreadSanitizer.
#include "vivace/serve/outbox.h"

#include <gtest/gtest.h>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
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

std::string chunk_of(const std::string& data) {
  return data.empty() ? "" : strf("%zx\r\n", data.size()) + data + "\r\n";
}

/// What chunks of HTTP/1.1 hold; "broken" where they are none, or where `whole` and the last one is cut.
std::string unchunked(const std::string& chunks, bool whole) {
  std::string all;
  for (size_t at = 0; at < chunks.size();) {
    const size_t line = chunks.find("\r\n", at);
    if (line == std::string::npos) return whole ? "broken" : all;
    const size_t size = std::stoul(chunks.substr(at, line - at), nullptr, 16), end = line + 2 + size;
    if (end + 2 > chunks.size()) return whole ? "broken" : all;
    if (chunks.compare(end, 2, "\r\n") != 0) return "broken";
    all += chunks.substr(line + 2, size);
    at = end + 2;
  }
  return all;
}

/// A stream over a socket whose client reads slowly or leaves: the reader, which sends what it reads, and the outbox
/// write in turns.
struct Wire {
  Wire(unsigned seed, bool leaves) : random(seed) {
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
    const int small = 1;  // the kernel takes its least
    setsockopt(ends[0], SOL_SOCKET, SO_SNDBUF, &small, sizeof(small));
    client = std::thread([this, leaves, slow = random() % 2 == 0, pauses = std::mt19937(seed + 1)]() mutable {
      char block[700];
      while (const ssize_t count = ::read(ends[1], block, 1 + pauses() % sizeof(block))) {
        if (count < 0) break;
        got.append(block, static_cast<size_t>(count));
        if (leaves && got.size() > 300) break;
        if (slow && pauses() % 8 == 0) std::this_thread::sleep_for(milliseconds(2));
      }
      close(ends[1]);
    });
  }
  ~Wire() {
    if (ends[0] >= 0) end();
  }
  void end() {
    close(std::exchange(ends[0], -1));
    client.join();
  }
  void send_all(const std::string& data) {
    for (size_t at = 0; at < data.size();) {
      const ssize_t count = ::send(ends[0], data.data() + at, data.size() - at, MSG_NOSIGNAL);
      if (count < 0) return;
      at += static_cast<size_t>(count);
    }
  }
  /// Everything of a stream; returns how often the outbox had the socket and how often it gave it back.
  std::pair<int, int> pump(ReplyStream& s, Notifier& bell) {
    int attached = 0, returned = 0;
    while (!s.over()) {
      send_all(chunk_of(s.read()));
      if (random() % 4 != 0) {
        EXPECT_TRUE(s.attach(ends[0]).ok());
        ++attached;
      }
      const uint32_t seen = bell.now();
      if (!s.unread()) bell.wait(seen, std::chrono::microseconds(random() % 3 == 0 ? 200 : 20'000));
      returned += s.attached() && s.unread() && !s.over();
      send_all(s.detach());
    }
    return {attached, returned};
  }

  std::mt19937 random;
  int ends[2] = {-1, -1};
  std::string got;
  std::thread client;
};

size_t descriptors() {
  const auto all = std::filesystem::directory_iterator("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(all), end(all)));
}

TEST(Outbox, ItWritesToSocketsItself) {
  ToyModel model(limits(4));
  EngineLoop loop(model, {.max_waiting = 64});
  auto made = Outbox::make(loop, words(), 1000);
  ASSERT_TRUE(made.ok());
  Outbox& box = **made;
  std::atomic<int> attached{0}, returned{0}, wrong{0};
  const size_t before = descriptors();
  const auto work = [&](unsigned seed) {
    std::mt19937 random(seed);
    const auto bell = std::make_shared<Notifier>();
    for (int turn = 0; turn < 20; ++turn) {
      const bool leaves = random() % 5 == 0;
      const Request r = request(static_cast<unsigned>(random() % kVocab), 1 + static_cast<int>(random() % 20),
                                1 + static_cast<int>(random() % 150));
      std::vector<Choice> all;
      const size_t choices = 1 + random() % 2;
      const std::string echo(random() % 2 == 0 ? 20'000 : 0, 'e');  // more than the socket takes at once
      for (size_t i = 0; i < choices; ++i) {
        auto handle = loop.submit(r, {.notifier = box.bell()});
        ASSERT_TRUE(handle.ok());
        Choice& c = all.emplace_back();
        c.handle = std::move(handle).value(), c.echo = echo;
      }
      auto opened = box.open(std::move(all), {}, bell);
      ASSERT_TRUE(opened.ok());
      Wire wire(static_cast<unsigned>(random()), leaves);
      const auto [had, gave] = wire.pump(*opened, *bell);
      attached += had, returned += gave;
      wire.end();
      const std::string text = unchunked(wire.got, !leaves);
      if (leaves) {
        wrong += text == "broken";
        continue;
      }
      for (size_t i = 0; i < choices; ++i) {
        std::string finish;
        wrong += text_of(text, static_cast<int>(i), &finish) != echo + told(r) || finish != "length";
      }
    }
  };
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < 4; ++i) threads.emplace_back(work, i);
  for (std::thread& t : threads) t.join();
  EXPECT_EQ(wrong, 0);
  EXPECT_GT(attached, 100);
  EXPECT_GT(returned, 5);
  EXPECT_EQ(descriptors(), before);
  int64_t sent = 0;
  for (const int64_t count : box.to_socket().counts()) sent += count;
  EXPECT_GT(sent, 100);
  EXPECT_EQ(box.to_socket().kept().size(), std::min<size_t>(1000, static_cast<size_t>(sent)));
}

TEST(Outbox, AStreamThatEndsGivesItsSocketBack) {
  ToyModel model(limits(1));
  EngineLoop loop(model);
  auto made = Outbox::make(loop, words());
  ASSERT_TRUE(made.ok());
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
  std::vector<Choice> one(1);
  one[0].handle = std::move(loop.submit(request(1, 5, 200), {.notifier = (*made)->bell()})).value();
  {
    auto opened = (*made)->open(std::move(one), {}, std::make_shared<Notifier>());
    ASSERT_TRUE(opened.ok() && opened->attach(ends[0]).ok());
    close(ends[0]);  // the outbox has its own
    char byte;
    pollfd begun{ends[1], POLLIN, 0};
    if (poll(&begun, 1, 5000) == 1) EXPECT_EQ(::read(ends[1], &byte, 1), 1);
    else EXPECT_TRUE(opened->unread());  // it was over before it had a socket: what it said is its reader's
    EXPECT_EQ(opened->attach(ends[1]).code(), Code::kFailedPrecondition);
  }
  pollfd end{ends[1], POLLIN, 0};
  std::string rest(1 << 16, '\0');
  ssize_t count = 1;
  while (count > 0 && poll(&end, 1, 5000) == 1) count = ::read(ends[1], rest.data(), rest.size());
  EXPECT_EQ(count, 0);
  close(ends[1]);
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
