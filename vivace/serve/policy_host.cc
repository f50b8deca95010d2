#include "vivace/serve/policy_host.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/base/forks.h"
#include "vivace/serve/thread.h"

namespace vivace::serve {
namespace {

constexpr int kSpare = 8;                    // connections beyond the robots', for /healthz and /metrics
constexpr int kTurnMs = 200;                 // between looks at what takes too long
constexpr double kFarewellSeconds = 1;       // that close() gives clients to take their leave

Status failed(const std::string& what) { return Status(Code::kIoError, what + ": " + std::strerror(errno)); }

Status read_address(const std::string& address, int port, sockaddr_storage* to, socklen_t* bytes) {
  auto* const v4 = reinterpret_cast<sockaddr_in*>(to);
  auto* const v6 = reinterpret_cast<sockaddr_in6*>(to);
  const std::string name = address == "localhost" ? "127.0.0.1" : address;
  if (inet_pton(AF_INET, name.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET, v4->sin_port = htons(static_cast<uint16_t>(port)), *bytes = sizeof(*v4);
    return {};
  }
  *to = {};
  if (inet_pton(AF_INET6, name.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6, v6->sin6_port = htons(static_cast<uint16_t>(port)), *bytes = sizeof(*v6);
    return {};
  }
  return Status(
      Code::kInvalidArgument,
      "address: wanted one of IPv4 or IPv6 (127.0.0.1 for this machine alone, 0.0.0.0 for all of its networks), got '" +
          address + "'");
}

Status check(const PolicyHostOptions& o) {
  const auto bad = [](const std::string& what) { return Status(Code::kInvalidArgument, what); };
  if (o.port < 0 || o.port > 65535) return bad(strf("port: wanted 0 to 65535, got %d", o.port));
  if (o.most_clients < 1 || o.most_clients > PolicyHostOptions::kMostClients)
    return bad(strf("max_clients: wanted 1 to %d, got %d", PolicyHostOptions::kMostClients, o.most_clients));
  if (!(o.deadline > 0 && o.deadline <= 3600))
    return bad(strf("deadline: wanted seconds above 0, 3600 at most, got %g", o.deadline));
  if (!(o.idle >= 0.1 && o.idle <= 3600)) return bad(strf("idle: wanted 0.1 to 3600 seconds, got %g", o.idle));
  return {};
}

/// What a client is told first: the robot's fields and the size of its chunks, then the caller's own entries.
Result<std::vector<std::byte>> metadata_of(const engine::PolicyModel& model, const models::vla::Robot& robot,
                                           std::span<const std::byte> more) {
  wire::Message own;
  if (!more.empty()) {
    VV_TRY(own.read(more));
    if (own.root().kind != wire::Value::Kind::map) return Status(Code::kInvalidArgument, "metadata: wanted a map");
    if (own.find(0, "vivace") != 0)
      return Status(Code::kInvalidArgument, "metadata: the key 'vivace' is the host's own");
  }
  const uint32_t entries = more.empty() ? 0 : own.root().count;
  const engine::PolicyLimits l = model.limits();
  std::vector<std::byte> out;
  wire::Writer w(&out);
  w.map(entries + 1);
  w.text("vivace");
  w.map(10);
  w.text("policy"), w.text(model.family());
  w.text("robot"), w.text(robot.name());
  w.text("cameras"), w.list(static_cast<uint32_t>(robot.cameras().size()));
  for (const auto& c : robot.cameras()) w.text(c.key);
  w.text("state"), w.list(static_cast<uint32_t>(robot.state().size()));
  for (const auto& p : robot.state()) w.text(p.key);
  w.text("state_dim"), w.whole(l.state_dim);
  w.text("action_horizon"), w.whole(l.horizon);
  w.text("action_dim"), w.whole(robot.dims(l.robot_dim));
  w.text("network_dim"), w.whole(l.action_dim);
  w.text("action_prefix"), w.flag(l.takes_prefix);
  w.text("future_actions"), w.flag(l.sees_state && robot.rolls());
  if (entries > 0) {
    const size_t head = entries < 16 ? 1 : 3;
    out.insert(out.end(), more.begin() + static_cast<ptrdiff_t>(head), more.end());
  }
  return out;
}

}  // namespace

PolicyHost::PolicyHost(const PolicyHostOptions& options) : most_(options.most_clients + kSpare) {
  door_.key = options.key, door_.prompt = options.prompt;
  door_.deadline_s = options.deadline, door_.idle_s = options.idle, door_.seed = options.seed;
  door_.metrics = &metrics_;
  door_.taken.assign(static_cast<size_t>(options.most_clients), false);
}

Result<std::unique_ptr<PolicyHost>> PolicyHost::start(const PolicyHostOptions& options) {
  VV_TRY(check(options));
  std::unique_ptr<PolicyHost> host(new PolicyHost(options));
  VV_TRY(host->listen(options));
  VV_ASSIGN(host->news_, Notifier::with_descriptor());
  host->queue_ = std::make_unique<PolicyQueue>(options.most_clients, &host->metrics_,
                                               [news = host->news_.get()] { news->ring(); });
  host->door_.queue = host->queue_.get();
  host->poll_ = epoll_create1(EPOLL_CLOEXEC);
  if (host->poll_ < 0) return failed("epoll");
  host->process_ = forks();
  PolicyHost* const raw = host.get();
  VV_TRY(start_thread("the policy host", &host->thread_, [raw] { raw->run(); }));
  return host;
}

Status PolicyHost::listen(const PolicyHostOptions& options) {
  sockaddr_storage at{};
  socklen_t bytes = 0;
  VV_TRY(read_address(options.address, options.port, &at, &bytes));
  const std::string where = options.address + " port " + std::to_string(options.port);
  listener_ = socket(at.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener_ < 0) return failed(where);
  const int on = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (bind(listener_, reinterpret_cast<sockaddr*>(&at), bytes) != 0 || ::listen(listener_, 64) != 0)
    return failed(where);
  bytes = sizeof(at);
  if (getsockname(listener_, reinterpret_cast<sockaddr*>(&at), &bytes) != 0) return failed(where);
  port_ = ntohs(at.ss_family == AF_INET ? reinterpret_cast<sockaddr_in*>(&at)->sin_port
                                        : reinterpret_cast<sockaddr_in6*>(&at)->sin6_port);
  return {};
}

PolicyHost::~PolicyHost() {
  close();
  for (const int fd : {listener_, poll_})
    if (fd >= 0) ::close(fd);
}

Status PolicyHost::serve(engine::PolicyModel& model, models::vla::Robot robot, PolicyDoor::Encode encode,
                         std::span<const std::byte> more) {
  VV_TRY(robot.fits(model.limits()));
  VV_ASSIGN(auto metadata, metadata_of(model, robot, more));
  const std::lock_guard hold(changing_);
  if (decided_ || closed_)
    return Status(Code::kFailedPrecondition,
                  closed_ ? "the policy host was closed; start another" : "the policy host has its policy already");
  robot_ = std::move(robot);
  VV_TRY(queue_->start(model, *robot_));
  decided_ = true;
  change_ = Change{true, {}, &model, std::move(encode), std::move(metadata)};
  changed_.store(true, std::memory_order_release);
  news_->ring();
  return {};
}

void PolicyHost::fail(const Status& why) {
  const std::lock_guard hold(changing_);
  if (decided_ || closed_) return;
  decided_ = true;
  change_ = Change{};
  change_->failure = why.ok() ? Status(Code::kInternal, "no policy") : why;
  changed_.store(true, std::memory_order_release);
  news_->ring();
}

void PolicyHost::close() {
  if (forks() != process_) {
    static_cast<void>(thread_.release());  // it is in the parent
    return;
  }
  const std::lock_guard one(closing_);
  {
    const std::lock_guard hold(changing_);
    closed_ = true;
  }
  if (thread_ == nullptr) return;
  stop_.store(true, std::memory_order_release);
  news_->ring();
  thread_->join();
  thread_.reset();
  queue_->stop();
  for (auto& c : connections_) c->die(), static_cast<void>(c->gone());  // what they asked waits for nobody any more
  connections_.clear();
}

/// The I/O thread's half of serve() and fail().
void PolicyHost::tell() {
  if (!changed_.exchange(false, std::memory_order_acq_rel)) return;
  Change c;
  {
    const std::lock_guard hold(changing_);
    if (!change_) return;
    c = std::move(*change_);
    change_.reset();
  }
  door_.ready = c.ready, door_.failure = std::move(c.failure);
  door_.model = c.model, door_.memory = c.model != nullptr ? c.model->host_pool().shared_from_this() : nullptr;
  door_.robot = robot_ ? &*robot_ : nullptr, door_.encode = std::move(c.encode),
  door_.metadata = std::move(c.metadata);
  for (auto& connection : connections_) connection->door_changed();
}

void PolicyHost::accept_all() {
  while (static_cast<int>(connections_.size()) < most_) {
    const int fd = accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd < 0) return;
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    connections_.push_back(std::make_unique<PolicyConnection>(fd, &door_));
    epoll_event e{};
    e.data.ptr = connections_.back().get();
    epoll_ctl(poll_, EPOLL_CTL_ADD, fd, &e);
  }
}

void PolicyHost::run() {
  pthread_setname_np(pthread_self(), "vivace-robots");
  epoll_event listener{}, news{};
  news.events = EPOLLIN, news.data.ptr = news_.get();
  epoll_ctl(poll_, EPOLL_CTL_ADD, news_->descriptor(), &news);
  listener.data.ptr = this;
  epoll_ctl(poll_, EPOLL_CTL_ADD, listener_, &listener);
  std::vector<epoll_event> events(64);
  auto ticked = PolicyConnection::Clock::now();
  std::optional<PolicyConnection::Clock::time_point> stopping;
  while (true) {
    // What each socket is asked for now. Who is full, or closing, is not; the others' turn does not depend on it.
    if (const uint32_t wanted = static_cast<int>(connections_.size()) < most_ && !stopping ? EPOLLIN : 0u;
        wanted != listener.events) {
      listener.events = wanted;
      epoll_ctl(poll_, EPOLL_CTL_MOD, listener_, &listener);
    }
    for (auto& c : connections_) {
      if (c->dead()) continue;
      epoll_event e{};
      e.events = (c->reads() ? EPOLLIN : 0u) | (c->writes() ? EPOLLOUT : 0u);
      e.data.ptr = c.get();
      if (e.events == c->polled) continue;
      c->polled = e.events;
      epoll_ctl(poll_, EPOLL_CTL_MOD, c->socket(), &e);
    }
    const int n = epoll_wait(poll_, events.data(), static_cast<int>(events.size()), kTurnMs);
    for (int i = 0; i < n; ++i) {
      void* const who = events[static_cast<size_t>(i)].data.ptr;
      const uint32_t what = events[static_cast<size_t>(i)].events;
      if (who == this) {
        accept_all();
      } else if (who == news_.get()) {
        news_->acknowledge();
        tell();
        for (auto& c : connections_) c->look();
      } else {
        auto& c = *static_cast<PolicyConnection*>(who);
        if (!c.dead() && (what & EPOLLOUT) != 0) c.writable();
        if (!c.dead() && (what & EPOLLIN) != 0) c.readable();
        else if (!c.dead() && (what & (EPOLLHUP | EPOLLERR)) != 0) c.die();
      }
    }
    const auto now = PolicyConnection::Clock::now();
    if (now - ticked > std::chrono::milliseconds(kTurnMs)) {
      ticked = now;
      for (auto& c : connections_) c->tick(now);
    }
    if (stop_.load(std::memory_order_acquire) && !stopping) {
      stopping = now;
      // Who comes now, or came and was not met, is refused at once: a listener nobody looks at would let him wait.
      ::close(listener_);
      listener_ = -1, listener.events = 0;
      for (auto& c : connections_) c->close(wire::kCloseGoing, "the host closes");
    }
    std::erase_if(connections_, [](const auto& c) { return c->gone(); });
    const bool left = std::all_of(connections_.begin(), connections_.end(), [](const auto& c) { return c->dead(); });
    if (stopping && (left || std::chrono::duration<double>(now - *stopping).count() > kFarewellSeconds)) return;
  }
}

}  // namespace vivace::serve
