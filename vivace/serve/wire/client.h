// Client: the robot's end of a websocket to a policy host, blocking, with a time limit on everything.
#pragma once
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "vivace/serve/wire/msgpack.h"
#include "vivace/serve/wire/websocket.h"

namespace vivace::serve::wire {

struct ClientOptions {
  std::string host = "127.0.0.1";  // a name or an address
  int port = 8000;
  std::string key;                 // sent as openpi's clients do
  double connect_s = 10;           // for the socket and the handshake
  double metadata_s = 600;         // for what the host says first, once its policy is loaded
};

/// One thread at a time, but for shut(), which any may call.
class Client {
 public:
  /// Errors: NotFound (the host's name), IoError (nobody listens, the link broke), LimitExceeded (time),
  /// InvalidArgument (an option; what the host's reply says where it refuses: a wrong key, too many robots),
  /// CorruptData (no websocket), the host's own where it says that it has no policy.
  static Result<std::unique_ptr<Client>> connect(const ClientOptions& options);
  ~Client();
  Client(const Client&) = delete;

  std::span<const std::byte> metadata() const { return metadata_; }
  /// Sends a message and waits for its answer, which stands until the next call. After an error the connection is
  /// closed: an answer that comes late is nobody's. Errors: LimitExceeded (time), IoError, Closed (shut()),
  /// CorruptData; the host's error with its own code.
  Result<std::span<const std::byte>> ask(std::span<const std::byte> message, double seconds);
  /// Whoever waits gets Closed, now and later.
  void shut();
  bool open() const { return socket_ >= 0; }

 private:
  Client() : receiver_(Receiver::End::client, kMostMessage) {}
  Status handshake(const ClientOptions& options, double until);
  Status send_all(std::span<const std::byte> bytes, double until);
  Result<size_t> receive(std::span<std::byte> room, double until);
  Result<std::span<const std::byte>> message(double until);
  Status wait(short events, double until);
  Status end(Status why);

  int socket_ = -1;
  std::atomic<int> shutting_{-1};  // the socket, for shut()
  std::atomic<bool> shut_{false};
  Receiver receiver_;
  std::vector<std::byte> out_, metadata_;
  uint64_t random_ = 0;
};

}  // namespace vivace::serve::wire
