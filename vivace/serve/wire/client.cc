#include "vivace/serve/wire/client.h"

#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/base/printable.h"
#include "vivace/serve/wire/http.h"

namespace vivace::serve::wire {
namespace {

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
Status broken_link(const char* what) { return Status(Code::kIoError, std::string("policy host: ") + what); }
Status failed(const std::string& what) {
  return Status(Code::kIoError, "policy host: " + what + ": " + std::strerror(errno));
}

/// The host's line, "CODE: what", as an error of that code.
Status said(std::string_view line) {
  const size_t colon = line.find(": ");
  Code code = Code::kFailedPrecondition;
  for (int i = 1; i < kCodeCount; ++i)
    if (colon != std::string_view::npos && line.substr(0, colon) == name(static_cast<Code>(i)))
      code = static_cast<Code>(i), line.remove_prefix(colon + 2);
  return Status(code, "policy host: " + printable(line.substr(0, 1000)));
}

}  // namespace

Client::~Client() { static_cast<void>(end({})); }

Status Client::end(Status why) {
  shutting_.store(-1, std::memory_order_release);
  if (socket_ >= 0) ::close(socket_);
  socket_ = -1;
  return why;
}

void Client::shut() {
  shut_.store(true, std::memory_order_release);
  if (const int fd = shutting_.load(std::memory_order_acquire); fd >= 0) shutdown(fd, SHUT_RDWR);
}

Status Client::wait(short events, double until) {
  while (true) {
    if (shut_.load(std::memory_order_acquire)) return Status(Code::kClosed, "policy host: the client was closed");
    const double left = until - now();
    if (left <= 0) return Status(Code::kLimitExceeded, "policy host: no answer within the time");
    pollfd p{socket_, events, 0};
    const int n = poll(&p, 1,
                       static_cast<int>(std::min(std::ceil(left * 1e3),
                                                 200.0)));  // shut() may have come before the socket was known to it
    if (n > 0) return {};
    if (n < 0 && errno != EINTR) return failed("poll");
  }
}

Status Client::send_all(std::span<const std::byte> bytes, double until) {
  while (!bytes.empty()) {
    const ssize_t n = send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) bytes = bytes.subspan(static_cast<size_t>(n));
    else if (n < 0 && errno == EAGAIN) VV_TRY(wait(POLLOUT, until));
    else if (n < 0 && errno != EINTR)
      return shut_.load() ? Status(Code::kClosed, "policy host: the client was closed") : failed("the link broke");
  }
  return {};
}

Result<size_t> Client::receive(std::span<std::byte> room, double until) {
  while (true) {
    const ssize_t n = recv(socket_, room.data(), room.size(), MSG_DONTWAIT);
    if (n > 0) return static_cast<size_t>(n);
    if (n == 0)
      return shut_.load() ? Status(Code::kClosed, "policy host: the client was closed")
                          : broken_link("it closed the link");
    if (errno == EAGAIN) VV_TRY(wait(POLLIN, until));
    else if (errno != EINTR) return failed("the link broke");
  }
}

Result<std::unique_ptr<Client>> Client::connect(const ClientOptions& o) {
  if (o.port < 1 || o.port > 65535)
    return Status(Code::kInvalidArgument, strf("port: wanted 1 to 65535, got %d", o.port));
  for (const double s : {o.connect_s, o.metadata_s})
    if (!(s > 0 && s <= 1e9)) return Status(Code::kInvalidArgument, strf("a time limit is above 0 seconds, got %g", s));
  if (o.host.empty() || o.host.find_first_of(" \r\n\t/") != std::string::npos ||
      o.key.find_first_of("\r\n") != std::string::npos)
    return Status(Code::kInvalidArgument, "host: wanted a name or an address, got '" + printable(o.host) + "'");
  const double until = now() + o.connect_s;
  addrinfo hints{}, *found = nullptr;
  hints.ai_socktype = SOCK_STREAM;
  if (const int e = getaddrinfo(o.host.c_str(), std::to_string(o.port).c_str(), &hints, &found); e != 0)
    return Status(Code::kNotFound, "policy host: " + printable(o.host) + ": " + gai_strerror(e));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> keep(found, &freeaddrinfo);
  std::unique_ptr<Client> c(new Client());
  Status last = broken_link("no address");
  for (const addrinfo* a = found; a != nullptr; a = a->ai_next) {
    c->socket_ = socket(a->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->socket_ < 0) return failed("socket");
    int error = 0;
    socklen_t bytes = sizeof(error);
    if (::connect(c->socket_, a->ai_addr, a->ai_addrlen) != 0 && errno != EINPROGRESS) error = errno;
    else if (Status s = c->wait(POLLOUT, until); !s.ok()) return c->end(std::move(s));
    else getsockopt(c->socket_, SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error == 0) {
      last = {};
      break;
    }
    last = Status(Code::kIoError,
                  strf("policy host: %s port %d: %s", printable(o.host).c_str(), o.port, std::strerror(error)));
    static_cast<void>(c->end({}));
  }
  VV_TRY(last);
  const int on = 1;
  setsockopt(c->socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  c->shutting_.store(c->socket_, std::memory_order_release);
  if (Status s = c->handshake(o, until); !s.ok()) return c->end(std::move(s));
  auto first = c->message(now() + o.metadata_s);
  if (!first.ok()) return c->end(std::move(first).status());
  c->metadata_.assign(first->begin(), first->end());
  c->receiver_.release();
  return c;
}

Status Client::handshake(const ClientOptions& o, double until) {
  uint8_t nonce[16];
  if (getentropy(nonce, sizeof(nonce)) != 0 || getentropy(&random_, sizeof(random_)) != 0) return failed("getentropy");
  const std::string key = base64(nonce);
  std::string head = "GET / HTTP/1.1\r\nHost: " + o.host + ":" + std::to_string(o.port) +
                     "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: " + key +
                     "\r\nSec-WebSocket-Version: 13\r\n";
  if (!o.key.empty()) head += "Authorization: Api-Key " + o.key + "\r\n";
  head += "\r\n";
  VV_TRY(send_all(std::as_bytes(std::span(head)), until));
  std::string reply;
  while (true) {
    std::byte some[1024];
    VV_ASSIGN(const size_t n, receive(some, until));
    reply.append(reinterpret_cast<const char*>(some), n);
    VV_ASSIGN(const size_t length, head_length(reply));
    if (length == 0) continue;
    VV_ASSIGN(const Head h, read_response(std::string_view(reply).substr(0, length)));
    if (h.status != 101)
      return Status(Code::kInvalidArgument, strf("policy host: it answers %d: %s", h.status,
                                                 printable(std::string_view(reply).substr(length, 200)).c_str()));
    const std::string_view* const accept = h.find("Sec-WebSocket-Accept");
    if (accept == nullptr || *accept != accept_of(key) || !h.lists("Upgrade", "websocket") ||
        !h.lists("Connection", "upgrade"))
      return Status(Code::kCorruptData, "policy host: this is no websocket");
    std::string_view rest = std::string_view(reply).substr(length);
    while (!rest.empty()) {
      const std::span<std::byte> room = receiver_.room();
      const size_t some_now = std::min(room.size(), rest.size());
      if (some_now == 0) return Status(Code::kCorruptData, "policy host: it speaks out of turn");
      std::memcpy(room.data(), rest.data(), some_now);
      receiver_.wrote(some_now);
      rest.remove_prefix(some_now);
    }
    return {};
  }
}

Result<std::span<const std::byte>> Client::message(double until) {
  const auto key = [this] {
    random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
    return static_cast<uint32_t>(random_ >> 32);
  };
  while (true) {
    VV_ASSIGN(const Receiver::Event event, receiver_.next());
    switch (event) {
      case Receiver::Event::none: {
        const std::span<std::byte> room = receiver_.room();
        if (room.empty()) return Status(Code::kCorruptData, "policy host: it speaks out of turn");
        VV_ASSIGN(const size_t n, receive(room, until));
        receiver_.wrote(n);
        break;
      }
      case Receiver::Event::binary: return std::span<const std::byte>(receiver_.message());
      case Receiver::Event::text: {
        const auto m = receiver_.message();
        return said({reinterpret_cast<const char*>(m.data()), m.size()});
      }
      case Receiver::Event::ping: {
        const uint32_t k = key();
        std::vector<std::byte> pong;
        write_frame(Opcode::pong, receiver_.control(), reinterpret_cast<const uint8_t*>(&k), &pong);
        VV_TRY(send_all(pong, until));
        break;
      }
      case Receiver::Event::pong: break;
      case Receiver::Event::close: {
        const auto c = receiver_.control();
        const int code = c.size() < 2 ? 1005 : static_cast<int>(c[0]) << 8 | static_cast<int>(c[1]);
        return Status(Code::kIoError, strf("policy host: it closed the link (%d)", code));
      }
    }
  }
}

Result<std::span<const std::byte>> Client::ask(std::span<const std::byte> m, double seconds) {
  if (!open()) return Status(Code::kClosed, "policy host: the link is closed; connect again");
  if (!(seconds > 0)) return Status(Code::kInvalidArgument, strf("ask: wanted seconds above 0, got %g", seconds));
  const double until = now() + seconds;
  receiver_.release();
  random_ = random_ * 6364136223846793005ull + 1442695040888963407ull;
  const uint32_t key = static_cast<uint32_t>(random_ >> 32);
  out_.clear();
  write_frame(Opcode::binary, m, reinterpret_cast<const uint8_t*>(&key), &out_);
  if (Status s = send_all(out_, until); !s.ok() && s.code() != Code::kIoError) return end(std::move(s));
  // Where the link broke while sending, what the host said before tells why.
  auto answer = message(until);
  if (!answer.ok()) return end(std::move(answer).status());
  return *answer;
}

}  // namespace vivace::serve::wire
