// The policy host with a policy that only counts: who is served when, threads, and clients that come and go. Also built
// with ThreadSanitizer.
#include "vivace/serve/policy_host.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <future>
#include <random>

#include "tests/engine/fake_lock.h"
#include "tests/serve/toy_policy.h"
#include "vivace/serve/wire/client.h"

namespace vivace::serve {
namespace {

using testing::ToyPolicy;
using wire::Client;

struct Seen {
  int height = 8, width = 8;
  uint64_t seed = 1;
  double deadline_ms = 0;
  bool planes = false;
  uint8_t grey = 7;

  std::vector<std::byte> message() const {
    std::vector<std::byte> out;
    wire::Writer w(&out);
    const std::vector<uint8_t> pixels(static_cast<size_t>(height * width * 3), grey);
    const float state[] = {0.1f, 0.2f, static_cast<float>(seed % 100)};
    w.map(5);
    for (const char* name : {"images/front", "images/above"}) {
      w.text(name);
      if (planes) w.array(DType::u8, std::array<int64_t, 3>{3, height, width}, pixels.data());
      else w.array(DType::u8, std::array<int64_t, 3>{height, width, 3}, pixels.data());
    }
    w.text("state"), w.array(DType::f32, std::array<int64_t, 1>{3}, state);
    w.text("prompt"), w.text("go");
    w.text("vivace");
    w.map(deadline_ms > 0 ? 2 : 1);
    w.text("seed"), w.whole_u64(seed);
    if (deadline_ms > 0) w.text("deadline_ms"), w.number(deadline_ms);
    return out;
  }
  float digest() const {
    const std::vector<uint8_t> pixels(static_cast<size_t>(height * width * 3), grey);
    const engine::Frame f = planes ? engine::Frame{pixels.data(), height, width, width, height * width}
                                   : engine::Frame{pixels.data(), height, width, width * 3, 0};
    const engine::Frame views[] = {f, f};
    const float state[] = {0.1f, 0.2f, static_cast<float>(seed % 100)};
    const int32_t tokens[] = {'g', 'o'};
    return ToyPolicy::digest({views, tokens, state, {}, seed, 1, {}});
  }
};

Result<std::vector<int32_t>> letters(std::string_view task, std::span<const float>) {
  return std::vector<int32_t>(task.begin(), task.end());
}

std::unique_ptr<PolicyHost> host_of(ToyPolicy& policy, PolicyHostOptions options = {}) {
  options.port = 0;
  auto host = PolicyHost::start(options);
  EXPECT_TRUE(host.ok()) << host.status().to_string();
  auto robot = models::vla::Robot::named("any", false, {"front", "above"});
  EXPECT_TRUE((*host)->serve(policy, *robot, letters).ok());
  return std::move(host).value();
}

std::unique_ptr<Client> client_of(const PolicyHost& host) {
  wire::ClientOptions o;
  o.port = host.port();
  auto c = Client::connect(o);
  EXPECT_TRUE(c.ok()) << c.status().to_string();
  return c.ok() ? std::move(c).value() : nullptr;
}

/// The first action of an answer; NaN where there is none.
float first_of(std::span<const std::byte> answer) {
  wire::Message m;
  EXPECT_TRUE(m.read(answer).ok());
  const uint32_t at = m.find(0, "actions");
  return at == 0 ? NAN : static_cast<float>(engine::value_at(m[at].array, 0));
}

double number_of(std::span<const std::byte> answer, const char* key) {
  wire::Message m;
  EXPECT_TRUE(m.read(answer).ok());
  const wire::Value& v = m[m.find(m.find(0, "vivace"), key)];
  return v.kind == wire::Value::Kind::whole  ? static_cast<double>(v.whole)
         : v.kind == wire::Value::Kind::flag ? v.flag
                                             : v.number;
}

TEST(PolicyHost, AnswersAreTheRequestsOwn) {
  ToyPolicy policy;
  const auto host = host_of(policy);
  const auto a = client_of(*host), b = client_of(*host);
  for (uint64_t i = 0; i < 20; ++i) {
    const Seen s{.height = 4 + static_cast<int>(i),
                 .width = 30 - static_cast<int>(i),
                 .seed = i,
                 .planes = i % 2 == 0 && i > 0,
                 .grey = static_cast<uint8_t>(i)};
    const auto got = (i % 3 == 0 ? a : b)->ask(s.message(), 10);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(first_of(*got), s.digest());
  }
  EXPECT_FALSE(policy.two_callers);
}

TEST(PolicyHost, TheEarliestDeadlineFirstAndTheLateNotAtAll) {
  ToyPolicy policy;
  const auto host = host_of(policy);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(client_of(*host));
  policy.hold = true;
  std::vector<std::future<double>> waits;
  const double deadlines[] = {60000, 50000, 30000, 40000, 1};  // the first one is in the policy when the others come
  for (size_t i = 0; i < 5; ++i) {
    waits.push_back(std::async(std::launch::async, [&, i] {
      const auto got = clients[i]->ask(Seen{.seed = i, .deadline_ms = deadlines[i]}.message(), 20);
      EXPECT_TRUE(got.ok()) << got.status().to_string();
      if (!got.ok()) return -1.0;
      EXPECT_EQ(number_of(*got, "missed"), i == 4);
      EXPECT_EQ(std::isnan(first_of(*got)), i == 4);
      return number_of(*got, "queue_ms") - 0.0;
    }));
    while (host->metrics().waiting.load() < static_cast<int64_t>(i) + 1) std::this_thread::yield();
    if (i == 0)
      while (policy.calls.load() == 0) std::this_thread::yield();
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  policy.spin_us = 20000;
  policy.hold = false;
  std::vector<double> ms;
  for (auto& w : waits) ms.push_back(w.get());
  EXPECT_LT(ms[2], ms[3]);
  EXPECT_LT(ms[3], ms[1]);
  EXPECT_EQ(policy.calls, 4);
  EXPECT_FALSE(policy.two_callers);
}

TEST(PolicyHost, TogetherAndWhoseFaultItIs) {
  ToyPolicy policy(4);
  const auto host = host_of(policy);
  std::vector<std::unique_ptr<Client>> clients;
  for (int i = 0; i < 5; ++i) clients.push_back(client_of(*host));
  policy.hold = true;
  std::vector<std::thread> asking;
  for (size_t i = 0; i < 5; ++i) {
    asking.emplace_back([&, i] {
      const Seen s{.height = i == 3 ? 100 : 8, .seed = i};
      const auto got = clients[i]->ask(s.message(), 20);
      if (i == 3) {
        ASSERT_FALSE(got.ok());
        EXPECT_EQ(got.status().code(), Code::kInvalidShape);
        EXPECT_EQ(got.status().message(), "policy host: observation 0: too high");
      } else {
        ASSERT_TRUE(got.ok()) << got.status().to_string();
        EXPECT_EQ(first_of(*got), s.digest());
        EXPECT_EQ(number_of(*got, "together"), 1);
      }
    });
    while (host->metrics().waiting.load() < static_cast<int64_t>(i) + 1) std::this_thread::yield();
    if (i == 0)
      while (policy.calls.load() == 0) std::this_thread::yield();
  }
  policy.hold = false;
  for (auto& t : asking) t.join();
  EXPECT_EQ(policy.most_together, 4);
  EXPECT_EQ(policy.calls, 1 + 1 + 4);
}

TEST(PolicyHost, ClientsThatGoWhileTheyAreAnswered) {
  ToyPolicy policy;
  const auto host = host_of(policy, {.most_clients = 2});
  for (int round = 0; round < 5; ++round) {
    policy.hold = true;
    const int before = policy.calls;
    std::vector<std::unique_ptr<Client>> clients;
    std::vector<std::thread> asking;
    for (size_t i = 0; i < 2; ++i) {
      clients.push_back(client_of(*host));
      ASSERT_NE(clients.back(), nullptr);
      asking.emplace_back(
          [&, i] { EXPECT_EQ(clients[i]->ask(Seen{.seed = i}.message(), 20).status().code(), Code::kClosed); });
      while (host->metrics().waiting.load() < static_cast<int64_t>(i) + 1) std::this_thread::yield();
    }
    while (policy.calls.load() == before) std::this_thread::yield();
    for (auto& c : clients) c->shut();  // one is in the policy, the other waits
    for (auto& t : asking) t.join();
    clients.clear();
    policy.hold = false;
    while (host->metrics().clients.load() > 0 || host->metrics().waiting.load() > 0) std::this_thread::yield();
    std::unique_ptr<Client> next;
    while (next == nullptr) {  // the places are free again as soon as the policy is
      wire::ClientOptions o;
      o.port = host->port();
      if (auto c = Client::connect(o); c.ok()) next = std::move(c).value();
    }
    const auto got = next->ask(Seen{.seed = 99}.message(), 10);
    ASSERT_TRUE(got.ok());
    EXPECT_EQ(first_of(*got), (Seen{.seed = 99}).digest());
    next.reset();
    while (host->metrics().clients.load() > 0) std::this_thread::yield();
  }
}

TEST(PolicyHost, TimeIsUp) {
  ToyPolicy policy;
  const auto host = host_of(policy);
  const auto c = client_of(*host);
  policy.hold = true;
  EXPECT_EQ(c->ask(Seen{}.message(), 0.05).status().code(), Code::kLimitExceeded);
  EXPECT_EQ(c->ask(Seen{}.message(), 0.05).status().code(), Code::kClosed);  // its answer would be the other's
  policy.hold = false;
}

TEST(PolicyHost, CloseWhileTheyAsk) {
  for (int round = 0; round < 5; ++round) {
    ToyPolicy policy(2);
    auto host = host_of(policy);
    std::vector<std::thread> asking;
    std::atomic<int> answers{0};
    for (uint64_t i = 0; i < 4; ++i)
      asking.emplace_back([&, i] {
        wire::ClientOptions o;
        o.port = host->port();
        const auto c = Client::connect(o);
        if (!c.ok()) {  // the host was closed before this thread had its turn: nobody listens, or it says so
          EXPECT_TRUE(c.status().code() == Code::kIoError ||
                      c.status().message().find("503: the host closes") != std::string::npos)
              << c.status().to_string();
          return;
        }
        while (true) {
          const auto got = (*c)->ask(Seen{.seed = i}.message(), 10);
          if (!got.ok()) {
            EXPECT_EQ(got.status().code(), Code::kIoError) << got.status().to_string();
            return;
          }
          EXPECT_EQ(first_of(*got), (Seen{.seed = i}).digest());
          ++answers;
        }
      });
    while (answers < 40) std::this_thread::yield();
    host->close();
    for (auto& t : asking) t.join();
    EXPECT_EQ(host->metrics().waiting.load(), 0);
    EXPECT_FALSE(policy.two_callers);
  }
}

TEST(PolicyHost, WhoComesAfterTheCloseIsRefusedAtOnce) {
  ToyPolicy policy;
  const auto host = host_of(policy);
  host->close();
  wire::ClientOptions o;
  o.port = host->port();
  EXPECT_EQ(Client::connect(o).status().code(), Code::kIoError);  // LimitExceeded: it was left to wait
  PolicyHostOptions same;
  same.port = host->port();
  const auto next = PolicyHost::start(same);
  EXPECT_TRUE(next.ok()) << next.status().to_string();
}

/// A socket that is a client's, up to the metadata.
int handshake(const PolicyHost& host) {
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET, at.sin_port = htons(static_cast<uint16_t>(host.port()));
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(fd, reinterpret_cast<const sockaddr*>(&at), sizeof at), 0);
  const std::string head =
      "GET / HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
      "Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n";
  EXPECT_EQ(send(fd, head.data(), head.size(), MSG_NOSIGNAL), static_cast<ssize_t>(head.size()));
  return fd;
}

/// A client that asks and never reads, not even that the host closes.
TEST(PolicyHost, NobodyWaitsAfterTheClose) {
  ToyPolicy policy;
  const auto host = host_of(policy);
  policy.hold = true;
  const auto asks = client_of(*host);
  std::thread asking([&] { EXPECT_EQ(asks->ask(Seen{}.message(), 20).status().code(), Code::kIoError); });
  while (policy.calls.load() == 0) std::this_thread::yield();
  const int fd = handshake(*host);
  while (host->metrics().clients.load() < 2) std::this_thread::yield();
  const uint8_t mask[4] = {1, 2, 3, 4};
  std::vector<std::byte> frame;
  wire::write_frame(wire::Opcode::binary, Seen{.seed = 2}.message(), mask, &frame);
  ASSERT_EQ(send(fd, frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
  while (host->metrics().waiting.load() < 2) std::this_thread::yield();
  std::thread closing([&] { host->close(); });
  asking.join();  // it is told while the policy still has its call
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));  // beyond the host's farewell
  policy.hold = false;
  closing.join();
  EXPECT_EQ(host->metrics().waiting.load(), 0);
  EXPECT_EQ(host->metrics().clients.load(), 0);
  ::close(fd);
}

TEST(PolicyHost, FramesArriveInPageLockedMemory) {
  engine::testing::FakeLock lock;
  ToyPolicy policy(2);
  policy.pool = engine::HostPool::make(lock.lock(), 4 << 20);
  {
    const auto host = host_of(policy);
    const auto a = client_of(*host), b = client_of(*host);
    for (uint64_t i = 0; i < 12; ++i) {
      const Seen s{.height = 64, .width = 60 + static_cast<int>(i) * 20, .seed = i, .planes = i % 4 == 3,
                   .grey = static_cast<uint8_t>(i)};
      const auto got = (i % 3 == 0 ? a : b)->ask(s.message(), 10);
      ASSERT_TRUE(got.ok()) << got.status().to_string();
      EXPECT_EQ(first_of(*got), s.digest());
    }
    EXPECT_EQ(policy.locked_frames, 24);
    EXPECT_EQ(policy.plain_frames, 0);
    const auto held = policy.pool->stats();
    EXPECT_GT(held.locked, held.kept) << "each client has its own";
  }
  EXPECT_EQ(policy.pool->stats().kept, policy.pool->stats().locked) << "all came back";
  policy.pool.reset();
  EXPECT_EQ(lock.held, 0u);
}

TEST(PolicyHost, FramesBeyondThePoolArriveInPlainMemory) {
  engine::testing::FakeLock lock;
  ToyPolicy policy;
  policy.pool = engine::HostPool::make(lock.lock(), 128 << 10);
  const auto host = host_of(policy);
  const auto c = client_of(*host);
  for (const int width : {20, 800, 20}) {  // the second has 300 KB, and the client keeps its memory
    const Seen s{.height = 64, .width = width, .seed = 5};
    const auto got = c->ask(s.message(), 10);
    ASSERT_TRUE(got.ok()) << got.status().to_string();
    EXPECT_EQ(first_of(*got), s.digest());
  }
  EXPECT_EQ(policy.locked_frames, 2);
  EXPECT_EQ(policy.plain_frames, 4);
  EXPECT_LE(lock.most, 128u << 10);
}

TEST(PolicyHost, MemoryOfThoseThatLeaveComesBack) {
  engine::testing::FakeLock lock;
  ToyPolicy policy;
  policy.pool = engine::HostPool::make(lock.lock(), 4 << 20);
  const auto host = host_of(policy);
  const auto all_back = [&] {
    const auto s = policy.pool->stats();
    return s.kept == s.locked;
  };
  const uint8_t mask[4] = {1, 2, 3, 4};
  std::vector<std::byte> frame;
  wire::write_frame(wire::Opcode::binary, Seen{.height = 64, .width = 800}.message(), mask, &frame);
  {  // in the middle of a message
    const int fd = handshake(*host);
    const size_t half = frame.size() / 2;
    ASSERT_EQ(send(fd, frame.data(), half, MSG_NOSIGNAL), static_cast<ssize_t>(half));
    while (host->metrics().bytes_in.load() < half) std::this_thread::yield();
    while (all_back()) std::this_thread::yield();
    ::close(fd);
    while (host->metrics().clients.load() > 0 || !all_back()) std::this_thread::yield();
    EXPECT_EQ(policy.calls, 0);
  }
  {  // while the policy reads it: it is nobody else's until the answer is there
    policy.hold = true;
    const int fd = handshake(*host);
    ASSERT_EQ(send(fd, frame.data(), frame.size(), MSG_NOSIGNAL), static_cast<ssize_t>(frame.size()));
    while (policy.calls.load() == 0) std::this_thread::yield();
    ::close(fd);
    while (host->metrics().clients.load() > 0) std::this_thread::yield();
    const auto next = client_of(*host);
    std::thread asking([&] {
      const Seen s{.height = 64, .width = 801, .seed = 3};
      const auto got = next->ask(s.message(), 20);
      ASSERT_TRUE(got.ok()) << got.status().to_string();
      EXPECT_EQ(first_of(*got), s.digest());
    });
    while (host->metrics().waiting.load() < 2) std::this_thread::yield();
    EXPECT_FALSE(all_back());
    policy.hold = false;
    asking.join();
  }
  while (host->metrics().clients.load() > 0 || !all_back()) std::this_thread::yield();
}

/// Clients that ask, leave at any moment and come again, for VV_STRESS_SECONDS (1).
TEST(PolicyHost, ManyThatComeAndGo) {
  const char* const given = std::getenv("VV_STRESS_SECONDS");
  const auto until =
      std::chrono::steady_clock::now() + std::chrono::duration<double>(given != nullptr ? std::atof(given) : 1);
  engine::testing::FakeLock lock;
  ToyPolicy policy(3);
  policy.pool = engine::HostPool::make(lock.lock(), 300 << 10);  // some get plain memory
  policy.spin_us = 200;
  const auto host = host_of(policy, {.most_clients = 8});
  std::atomic<int> right{0}, left{0};
  std::vector<std::thread> robots;
  for (uint64_t r = 0; r < 8; ++r)
    robots.emplace_back([&, r] {
      std::mt19937_64 draw(r);
      while (std::chrono::steady_clock::now() < until) {
        wire::ClientOptions o;
        o.port = host->port();
        auto c = Client::connect(o);
        if (!c.ok()) continue;  // places of those that left are not free yet
        for (int i = 0; i < 20; ++i) {
          const Seen s{.height = 4 + static_cast<int>(draw() % 60),
                       .width = 4 + static_cast<int>(draw() % 60),
                       .seed = draw(),
                       .deadline_ms = draw() % 3 == 0 ? 5000.0 : 0.0,
                       .grey = static_cast<uint8_t>(draw())};
          std::thread breaker;
          const bool leaves = draw() % 8 == 0;
          if (leaves) breaker = std::thread([&c, wait = draw() % 400] {
            std::this_thread::sleep_for(std::chrono::microseconds(wait));
            (*c)->shut();
          });
          const auto got = (*c)->ask(s.message(), 20);
          if (got.ok()) {
            EXPECT_EQ(first_of(*got), s.digest());
            ++right;
          }
          if (leaves) {
            breaker.join();
            ++left;
            break;
          }
          EXPECT_TRUE(got.ok()) << got.status().to_string();
        }
      }
    });
  for (auto& t : robots) t.join();
  EXPECT_GT(right, 20);
  EXPECT_GT(policy.locked_frames, 0);
  EXPECT_FALSE(policy.two_callers);
  EXPECT_TRUE(host->metrics().waiting.load() >= 0);
}

}  // namespace
}  // namespace vivace::serve
