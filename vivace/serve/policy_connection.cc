#include "vivace/serve/policy_connection.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/base/printable.h"

namespace vivace::serve {
namespace {

using std::chrono::duration;
using wire::Opcode;

constexpr double kHeadSeconds = 10, kMessageSeconds = 30, kStuckSeconds = 10, kClosingSeconds = 2;
constexpr size_t kMostPending = 64 << 10;  // bytes that wait to go beyond which pings are not answered
constexpr size_t kMostSaid = 900;          // characters of an error
constexpr int kReads = 32;                 // of a socket before the next one's turn

double since(PolicyConnection::Clock::time_point t, PolicyConnection::Clock::time_point now) {
  return duration<double>(now - t).count();
}
std::span<const std::byte> bytes_of(std::string_view s) { return std::as_bytes(std::span(s.data(), s.size())); }

}  // namespace

PolicyConnection::PolicyConnection(int socket, PolicyDoor* door)
    : socket_(socket), door_(*door), began_(Clock::now()), heard_(began_) {}

PolicyConnection::~PolicyConnection() {
  if (socket_ >= 0) ::close(socket_);
}

void PolicyConnection::die() {
  if (state_ == State::dead) return;
  state_ = State::dead;
  ::close(socket_);
  socket_ = -1;
  if (place_ >= 0) door_.metrics->clients.fetch_sub(1, std::memory_order_relaxed);
}

bool PolicyConnection::gone() {
  if (!dead()) return false;
  if (place_ < 0) return true;
  PolicyRequest& r = door_.queue->place(place_);
  if (!door_.queue->cancel(r)) return false;
  if (r.state.exchange(PolicyRequest::idle, std::memory_order_acq_rel) == PolicyRequest::answered)
    door_.metrics->abandoned.fetch_add(1, std::memory_order_relaxed);
  door_.taken[static_cast<size_t>(place_)] = false;
  place_ = -1;
  return true;
}

bool PolicyConnection::reads() {
  return !dead() && state_ != State::reply &&
         (receiver_ == nullptr || state_ == State::closing || !receiver_->room().empty());
}

void PolicyConnection::readable() {
  char scrap[4096];
  for (int i = 0; i < kReads && reads(); ++i) {
    const bool frames = receiver_ != nullptr && state_ == State::open;
    const std::span<std::byte> room = frames ? receiver_->room() : std::as_writable_bytes(std::span(scrap));
    const ssize_t n = recv(socket_, room.data(), room.size(), MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return die();
    if (n < 0) return;
    door_.metrics->bytes_in.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    heard_ = Clock::now(), pinged_ = false;
    if (frames) {
      receiver_->wrote(static_cast<size_t>(n));
      take_frames();
    } else if (state_ == State::head) {
      head_.append(scrap, static_cast<size_t>(n));
      read_head();
    }
  }
}

void PolicyConnection::read_head() {
  const auto length = wire::head_length(head_);
  if (!length.ok()) return reply(431, "Request Header Fields Too Large", "text/plain", "the head is too large\n");
  if (*length == 0) return;
  const auto head = wire::read_request(std::string_view(head_).substr(0, *length));
  if (!head.ok()) return reply(400, "Bad Request", "text/plain", head.status().message() + "\n");
  if (head->method != "GET")
    return reply(405, "Method Not Allowed", "text/plain", "only GET is served\n", "Allow: GET\r\n");
  if (head->lists("Upgrade", "websocket")) {
    upgrade(*head);
    if (state_ != State::open) return;
    std::string rest = head_.substr(*length);
    head_ = {};
    for (std::string_view left = rest; !left.empty() && state_ == State::open;) {  // frames that came with the head
      const std::span<std::byte> room = receiver_->room();
      if (room.empty())
        return fail(Status(Code::kLimitExceeded, "websocket: a client waits for the metadata before it sends"));
      const size_t n = std::min(room.size(), left.size());
      std::memcpy(room.data(), left.data(), n);
      receiver_->wrote(n);
      left.remove_prefix(n);
      take_frames();
    }
    return;
  }
  answer_http(*head);
}

void PolicyConnection::reply(int status, const char* reason, std::string_view type, std::string_view body,
                             const char* more) {
  const std::string head =
      strf("HTTP/1.1 %d %s\r\nContent-Type: %.*s; charset=utf-8\r\nContent-Length: %zu\r\nConnection: close\r\n%s\r\n",
           status, reason, static_cast<int>(type.size()), type.data(), body.size(), more);
  for (const std::string_view part : {std::string_view(head), body}) {
    const auto b = bytes_of(part);
    out_.insert(out_.end(), b.begin(), b.end());
  }
  state_ = State::reply;
  if (status >= 400 && status != 404) door_.metrics->refused.fetch_add(1, std::memory_order_relaxed);
  flush();
}

/// Whether the head has the host's key.
static bool has_key(const wire::Head& head, const std::string& key) {
  if (key.empty()) return true;
  const std::string_view* const given = head.find("Authorization");
  if (given == nullptr) return false;
  const size_t space = given->find(' ');
  const std::string_view scheme = given->substr(0, space);
  const bool known = scheme == "Api-Key" || scheme == "Bearer";
  return wire::same_secret(space == std::string_view::npos ? std::string_view() : given->substr(space + 1), key) &&
         known;
}

void PolicyConnection::answer_http(const wire::Head& head) {
  if (head.target == "/healthz") {
    if (door_.ready) return reply(200, "OK", "text/plain", "OK\n");
    return reply(503, "Service Unavailable", "text/plain", door_.failure.ok() ? "loading\n" : "failed\n");
  }
  if (!has_key(head, door_.key))
    return reply(401, "Unauthorized", "text/plain", "wanted the host's key: Authorization: Api-Key KEY\n");
  if (head.target == "/metrics") return reply(200, "OK", "text/plain; version=0.0.4", door_.metrics->text(door_.ready));
  reply(404, "Not Found", "text/plain", "a policy host: websocket at /, and /healthz, /metrics\n");
}

void PolicyConnection::upgrade(const wire::Head& head) {
  if (!has_key(head, door_.key))
    return reply(401, "Unauthorized", "text/plain", "wanted the host's key: Authorization: Api-Key KEY\n");
  // A browser says where its page is from, robots do not: pages must not reach robots of the machine they are shown on.
  if (head.find("Origin") != nullptr)
    return reply(403, "Forbidden", "text/plain", "pages of browsers are not served\n");
  const std::string_view *const key = head.find("Sec-WebSocket-Key"), *const version =
                                                                          head.find("Sec-WebSocket-Version");
  if (version == nullptr || *version != "13")
    return reply(426, "Upgrade Required", "text/plain", "wanted Sec-WebSocket-Version: 13\n",
                 "Sec-WebSocket-Version: 13\r\nUpgrade: websocket\r\n");
  if (key == nullptr || !wire::is_websocket_key(*key) || !head.lists("Connection", "upgrade"))
    return reply(400, "Bad Request", "text/plain", "this is no websocket handshake\n");
  const auto free = std::find(door_.taken.begin(), door_.taken.end(), false);
  if (free == door_.taken.end())
    return reply(503, "Service Unavailable", "text/plain",
                 strf("%zu robots are connected, which is the most\n", door_.taken.size()), "Retry-After: 1\r\n");
  place_ = static_cast<int>(free - door_.taken.begin());
  *free = true;
  serial_ = ++door_.opened;
  door_.metrics->connections.fetch_add(1, std::memory_order_relaxed);
  door_.metrics->clients.fetch_add(1, std::memory_order_relaxed);
  receiver_ = std::make_unique<wire::Receiver>(wire::Receiver::End::server, door_.most_message);
  state_ = State::open;
  const std::string head_out =
      "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Accept: " +
      wire::accept_of(*key) + "\r\n\r\n";
  const auto b = bytes_of(head_out);
  out_.insert(out_.end(), b.begin(), b.end());
  door_changed();
  flush();
}

void PolicyConnection::door_changed() {
  if (state_ != State::open || greeted_) return;
  if (!door_.failure.ok()) return fail(door_.failure);
  if (!door_.ready) return;
  greeted_ = true;
  receiver_->use(door_.memory);
  wire::write_frame(Opcode::binary, door_.metadata, nullptr, &out_);
  flush();
  if (!held_ || state_ != State::open) return;
  take_message();
  take_frames();
}

void PolicyConnection::take_frames() {
  while (state_ == State::open) {
    const auto event = receiver_->next();
    if (!event.ok()) {
      door_.metrics->broken.fetch_add(1, std::memory_order_relaxed);
      return fail(event.status(),
                  event.status().code() == Code::kLimitExceeded ? wire::kCloseTooLarge : wire::kCloseProtocol);
    }
    switch (*event) {
      case wire::Receiver::Event::none:
        if (receiver_->begun() && message_began_ == Clock::time_point()) message_began_ = Clock::now();
        return;
      case wire::Receiver::Event::binary:
        take_message();
        break;
      case wire::Receiver::Event::text:
        return fail(Status(Code::kInvalidArgument, "wanted a binary message of msgpack, got a text"));
      case wire::Receiver::Event::ping:
        if (out_.size() - sent_ <= kMostPending) wire::write_frame(Opcode::pong, receiver_->control(), nullptr, &out_);
        flush();
        break;
      case wire::Receiver::Event::pong:
        break;
      case wire::Receiver::Event::close:
        // What the client said, said back; a code that must not be sent is answered as none.
        wire::write_frame(Opcode::close, receiver_->control().first(std::min<size_t>(2, receiver_->control().size())),
                          nullptr, &out_);
        state_ = State::closing, closing_since_ = Clock::now();
        return flush();
    }
  }
}

void PolicyConnection::flush() {
  while (sent_ < out_.size() && !dead()) {
    const ssize_t n = send(socket_, out_.data() + sent_, out_.size() - sent_, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      if (stuck_ == Clock::time_point()) stuck_ = Clock::now();
      return;
    }
    if (n < 0) return die();
    stuck_ = {};
    door_.metrics->bytes_out.fetch_add(static_cast<uint64_t>(n), std::memory_order_relaxed);
    sent_ += static_cast<size_t>(n);
  }
  out_.clear();
  sent_ = 0;
  stuck_ = {};
  if (state_ != State::reply && state_ != State::closing) return;
  // All is said. The socket stays until the client's end comes: closed with bytes unread, it could cost the client what
  // was said last.
  shutdown(socket_, SHUT_WR);
  if (state_ == State::reply) state_ = State::closing, closing_since_ = Clock::now();
}

void PolicyConnection::fail(const Status& status, int code) {
  if (state_ != State::open) return;
  std::string line = printable(status.to_string().substr(0, kMostSaid));
  std::replace(line.begin(), line.end(), '\n', ' ');
  wire::write_frame(Opcode::text, bytes_of(line), nullptr, &out_);
  close(code, vivace::name(status.code()));
}

void PolicyConnection::close(int code, std::string_view reason) {
  if (state_ == State::head) return reply(503, "Service Unavailable", "text/plain", "the host closes\n");
  if (state_ != State::open) return;
  wire::write_close(code, reason, nullptr, &out_);
  state_ = State::closing, closing_since_ = Clock::now();
  flush();
}

void PolicyConnection::tick(Clock::time_point now) {
  if (dead()) return;
  if (state_ == State::head && since(began_, now) > kHeadSeconds) return die();
  if (writes() && stuck_ != Clock::time_point() && since(stuck_, now) > kStuckSeconds) {
    door_.metrics->slow_readers.fetch_add(1, std::memory_order_relaxed);
    return die();
  }
  if (state_ == State::closing && since(closing_since_, now) > kClosingSeconds) return die();
  if (state_ != State::open) return;
  if (message_began_ != Clock::time_point() && since(message_began_, now) > kMessageSeconds)
    return fail(Status(Code::kLimitExceeded, strf("a message took longer than %g seconds", kMessageSeconds)));
  if (place_ >= 0 && door_.queue->place(place_).state.load(std::memory_order_relaxed) != PolicyRequest::idle)
    return;  // it waits for us
  const double silent = since(heard_, now);
  if (silent > 2 * door_.idle_s) {
    door_.metrics->silent.fetch_add(1, std::memory_order_relaxed);
    return fail(Status(Code::kLimitExceeded, strf("nothing came for %g seconds, no pong either", silent)));
  }
  if (silent > door_.idle_s && !pinged_) {
    pinged_ = true;
    wire::write_frame(Opcode::ping, {}, nullptr, &out_);
    flush();
  }
}

}  // namespace vivace::serve
