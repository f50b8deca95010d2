// PolicyHost: a robot's policy behind a websocket, in openpi's words. docs/robots.md has the wire and the limits.
#pragma once
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "vivace/serve/policy_connection.h"

namespace vivace::serve {

struct PolicyHostOptions {
  static constexpr int kMostClients = 1024;
  std::string address = "127.0.0.1";  // or "::1", "0.0.0.0", "::"
  int port = 8000;                    // 0: one that is free
  std::string key = {};               // clients bring it, "Authorization: Api-Key KEY"; empty: anybody may ask
  std::string prompt = {};            // of requests that have none
  int most_clients = 16;
  double deadline = 0.1;  // s after its arrival by which an answer counts as due where the request says nothing
  double idle = 20;                   // s of silence before a ping, and again before the connection is closed
  uint64_t seed = 0;                  // of noise, with the connection's number and the request's
};

/// One I/O thread with all sockets, one thread that runs the policy. The first begins with start() and answers pings
/// and /healthz while the policy is still being loaded; openpi's clients wait for the metadata, which goes out with
/// serve().
class PolicyHost {
 public:
  /// Errors: InvalidArgument names the option; IoError (an address or port that cannot be had); LimitExceeded (threads,
  /// files).
  static Result<std::unique_ptr<PolicyHost>> start(const PolicyHostOptions& options);
  /// close().
  ~PolicyHost();
  PolicyHost(const PolicyHost&) = delete;

  int port() const { return port_; }
  /// Begins to answer. `model` must outlive the host's close(), and nobody else calls it until then. `encode` is called
  /// on the I/O thread. `more`: a message, a map whose entries join the metadata; may be empty. Errors: those of
  /// Robot::fits(); FailedPrecondition (twice, after fail() or close()); Message::read()'s.
  Status serve(engine::PolicyModel& model, models::vla::Robot robot, PolicyDoor::Encode encode,
               std::span<const std::byte> more = {});
  /// There will be no policy: whoever is connected or comes is told why.
  void fail(const Status& why);
  /// Tells everybody (1001), waits for the call that is on its way, and frees the port. From any thread but the host's;
  /// twice is fine.
  void close();
  const PolicyMetrics& metrics() const { return metrics_; }

 private:
  explicit PolicyHost(const PolicyHostOptions& options);
  Status listen(const PolicyHostOptions& options);
  void run();
  void accept_all();
  void tell();

  PolicyMetrics metrics_;
  const int most_;
  int port_ = 0, listener_ = -1, poll_ = -1, process_ = 0;
  std::shared_ptr<Notifier> news_;        // of the policy's thread and of callers
  std::unique_ptr<PolicyQueue> queue_;
  PolicyDoor door_;                       // the I/O thread's
  std::vector<std::unique_ptr<PolicyConnection>> connections_;
  std::unique_ptr<std::thread> thread_;
  std::optional<models::vla::Robot> robot_;

  // From callers to the I/O thread.
  struct Change {
    bool ready = false;
    Status failure;
    engine::PolicyModel* model = nullptr;
    PolicyDoor::Encode encode;
    std::vector<std::byte> metadata;
  };
  std::mutex closing_, changing_;  // among callers; the I/O thread takes the second when a flag says there is something
  std::optional<Change> change_;
  std::atomic<bool> changed_{false}, stop_{false};
  bool decided_ = false, closed_ = false;
};

}  // namespace vivace::serve
