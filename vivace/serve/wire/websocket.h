// Frames of RFC 6455, seen from either end: a receiver that a socket's bytes go into, and headers to send.
#pragma once
#include <memory>
#include <span>
#include <vector>

#include "vivace/base/status.h"
#include "vivace/engine/host_pool.h"

namespace vivace::serve::wire {

enum class Opcode : uint8_t { more = 0, text = 1, binary = 2, close = 8, ping = 9, pong = 10 };

// Why a connection ends (RFC 6455, 7.4.1).
inline constexpr int kCloseNormal = 1000, kCloseGoing = 1001, kCloseProtocol = 1002, kCloseTooLarge = 1009,
                     kCloseError = 1011, kCloseRestart = 1012;
inline constexpr size_t kMostControl = 125;  // bytes of a ping, a pong, a close

/// `data` lies `offset` bytes into a payload.
void mask(std::span<std::byte> data, const uint8_t key[4], uint64_t offset);
/// Appends a whole frame. `key` null: the server's frames, which are not masked.
void write_frame(Opcode opcode, std::span<const std::byte> payload, const uint8_t* key, std::vector<std::byte>* out);
void write_close(int code, std::string_view reason, const uint8_t* key, std::vector<std::byte>* out);
/// Appends the header alone of an unmasked frame.
void write_header(Opcode opcode, uint64_t bytes, std::vector<std::byte>* out);

/// Puts frames together. A message's bytes go straight into its buffer, and there is memory for what has come, not for
/// what is announced.
class Receiver {
 public:
  enum class Event : uint8_t { none, text, binary, ping, pong, close };
  enum class End : uint8_t { server, client };
  Receiver(End own, size_t most_message) : masked_(own == End::server), most_(most_message) {}
  /// Memory of messages that begin from now on comes from `pool`, and goes back there with this; before, it is plain.
  void use(std::shared_ptr<engine::HostPool> pool) { pool_ = std::move(pool), renew_ = true; }

  /// Where the socket's next bytes go; never empty but when next() has to be asked first.
  std::span<std::byte> room();
  /// That many were written there.
  void wrote(size_t bytes);
  /// What is there next. text and binary: message() until release(). ping, pong, close: control() until the next call.
  /// none: more bytes must come, or release(). Errors: CorruptData (breaks the protocol: 1002), LimitExceeded (too
  /// large: 1009).
  Result<Event> next();
  std::span<std::byte> message() const { return {message_.data(), have_}; }
  /// Whether message() lies in page-locked memory of the pool.
  bool page_locked() const { return message_.page_locked(); }
  /// The message is not needed any more; the next one may take its place.
  void release();
  /// Whether a message is there and not released: data frames wait meanwhile, pings do not.
  bool full() const { return whole_; }
  /// Whether a message has begun and is not whole.
  bool begun() const { return in_frame_ || open_; }
  std::span<const std::byte> control() const { return {control_, control_bytes_}; }

 private:
  Result<Event> header();
  Status grow(size_t need);
  void take(std::span<const std::byte> from);

  const bool masked_;
  const size_t most_;
  std::vector<std::byte> raw_ = std::vector<std::byte>(4096);  // [begin_, end_) came and was not looked at
  size_t begin_ = 0, end_ = 0;
  std::shared_ptr<engine::HostPool> pool_ = engine::HostPool::make(nullptr, 0);
  engine::HostBytes message_;
  size_t have_ = 0;                  // of message_
  bool renew_ = false;               // message_ is of another pool
  bool whole_ = false, open_ = false;  // a message is there; one has begun and has no last frame yet
  Opcode kind_ = Opcode::binary;     // of the message
  bool in_frame_ = false, last_ = false, direct_ = false;
  uint64_t left_ = 0, offset_ = 0;   // of a data frame's payload
  uint8_t key_[4] = {};
  std::byte control_[kMostControl];
  size_t control_bytes_ = 0;
};

}  // namespace vivace::serve::wire
