// PolicyConnection: a robot's socket at the policy host, from the first byte of HTTP to the last answer. All of it runs
// on the host's I/O thread.
#pragma once
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "vivace/serve/policy_queue.h"
#include "vivace/serve/wire/http.h"
#include "vivace/serve/wire/msgpack.h"
#include "vivace/serve/wire/websocket.h"

namespace vivace::serve {

/// What connections share with their host.
struct PolicyDoor {
  using Encode = std::function<Result<std::vector<int32_t>>(std::string_view task, std::span<const float> state)>;
  std::string key, prompt;
  size_t most_message = wire::kMostMessage;
  double deadline_s = 0.1, idle_s = 20;
  uint64_t seed = 0;
  PolicyMetrics* metrics = nullptr;
  PolicyQueue* queue = nullptr;
  std::vector<bool> taken;              // places of the queue
  int64_t opened = 0;                   // websockets so far

  // Once the policy is there.
  bool ready = false;
  Status failure;                       // why it never will be
  engine::PolicyModel* model = nullptr;
  std::shared_ptr<engine::HostPool> memory;  // of messages
  const models::vla::Robot* robot = nullptr;
  Encode encode;
  std::vector<std::byte> metadata;      // a message
};

class PolicyConnection {
 public:
  using Clock = PolicyRequest::Clock;
  PolicyConnection(int socket, PolicyDoor* door);
  ~PolicyConnection();
  PolicyConnection(const PolicyConnection&) = delete;

  int socket() const { return socket_; }
  uint32_t polled = 0;  // what epoll was asked for
  /// Whether bytes are wanted, or wait to go.
  bool reads();
  bool writes() const { return sent_ < out_.size(); }
  void readable();
  void writable() { flush(); }
  /// The policy is there, or never will be.
  void door_changed();
  /// Looks whether its request is answered.
  void look();
  /// Every quarter of a second or so.
  void tick(Clock::time_point now);
  /// Says goodbye; what was said before still goes out.
  void close(int code, std::string_view reason);
  /// The socket is of no use any more.
  void die();
  bool dead() const { return state_ == State::dead; }
  /// Dead, and nobody needs its memory any more.
  bool gone();

 private:
  enum class State : uint8_t { head, reply, open, closing, dead };
  void read_head();
  void answer_http(const wire::Head& head);
  void upgrade(const wire::Head& head);
  void reply(int status, const char* reason, std::string_view type, std::string_view body, const char* more = "");
  void take_frames();
  void take_message();
  Status read_request(PolicyRequest* request);
  Status read_own(uint32_t map, PolicyRequest* request);
  void write_answer(const PolicyRequest& request);
  void write_own_numbers(const PolicyRequest& request, wire::Writer* w);
  void write_reset();
  void send_payload();
  void fail(const Status& status, int code = wire::kCloseError);
  void flush();

  int socket_;
  PolicyDoor& door_;
  State state_ = State::head;
  std::string head_;
  std::unique_ptr<wire::Receiver> receiver_;
  std::vector<std::byte> out_, payload_;
  size_t sent_ = 0;
  int place_ = -1;                       // of the queue
  bool greeted_ = false, held_ = false;  // metadata is out; a message waits for the policy
  bool pinged_ = false;
  Clock::time_point began_, heard_, stuck_, message_began_, closing_since_;

  // The request at hand.
  wire::Message message_;
  std::vector<engine::Field> fields_;
  std::string names_;                    // of nested fields
  int64_t requests_ = 0, serial_ = 0;
  int64_t number_ = 0;                   // the client's own, or requests_
  uint64_t seed_ = 0;
  std::string episode_;                  // as the client wrote it, a msgpack value; empty: none
  double total_ms_ = -1;                 // of the request before
};

}  // namespace vivace::serve
