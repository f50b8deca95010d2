// A robot's loop in C++: 30 ticks a second, on time whatever the link does. The driver here is a fake of three joints
// and two grey cameras; put your own in its place.
//     robot_loop HOST PORT SECONDS
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>

#include "vivace/serve/robot_client.h"

namespace {

using vivace::Status;
using vivace::serve::RobotClient;

class Driver {
 public:
  static constexpr int kSide = 112, kJoints = 3;
  std::vector<float> joints = std::vector<float>(kJoints, 0.3f);
  /// What the cameras see and where the joints are.
  void look(vivace::serve::RobotMessage* seen) const {
    seen->clear();
    for (const char* camera : {"images/front", "images/above"}) seen->picture(camera, frame_.data(), kSide, kSide);
    seen->numbers("state", joints);
    seen->text("prompt", "reach the red ball");
  }
  void turn(const std::vector<float>& by) {
    for (size_t i = 0; i < joints.size(); ++i) joints[i] += by[i];
  }

 private:
  std::vector<uint8_t> frame_ = std::vector<uint8_t>(kSide * kSide * 3, 128);
};

Status loop(const char* host, int port, double seconds) {
  vivace::serve::RobotClientOptions options;
  options.link.host = host, options.link.port = port;
  options.chunks.horizon = 0;                                       // the host says how long its chunks are
  options.chunks.join = vivace::serve::ChunkOptions::Join::blend;
  options.chunks.max_step = std::vector<float>(Driver::kJoints, 0.05f);
  options.answer_s = 5;
  options.connect_s = 5;  // the default waits ten minutes for a host that is yet to come
  auto started = RobotClient::start(options);
  if (!started.ok()) return started.status();
  RobotClient& robot = **started;

  Driver driver;
  vivace::serve::RobotMessage seen;
  std::vector<float> action(Driver::kJoints);
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  };
  if (Status s = robot.begin(std::vector<float>(Driver::kJoints), now(), "example", 1); !s.ok()) return s;
  int used = 0;
  const double began = now();
  for (int i = 0; i < seconds * 30; ++i) {
    std::this_thread::sleep_for(std::chrono::duration<double>(began + i / 30.0 - now()));
    if (robot.wants(now())) {
      driver.look(&seen);
      if (Status s = robot.ask(now(), seen); !s.ok()) return s;
    }
    vivace::serve::Tick tick;
    if (Status s = robot.next(now(), action, &tick); !s.ok()) return s;
    if (tick.source != vivace::serve::TickSource::chunk && tick.source != vivace::serve::TickSource::blend)
      continue;  // nothing fresh: stand still
    driver.turn(action);
    ++used;
  }
  std::printf("%d actions, %lld answers, %lld failed%s%s\n", used, static_cast<long long>(robot.answered()),
              static_cast<long long>(robot.failed()), robot.error().empty() ? "" : ": ", robot.error().c_str());
  return {};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) return std::fprintf(stderr, "usage: robot_loop HOST PORT SECONDS\n"), 2;
  const Status s = loop(argv[1], std::atoi(argv[2]), std::atof(argv[3]));
  if (!s.ok()) std::fprintf(stderr, "%s\n", s.to_string().c_str());
  return s.ok() ? 0 : 1;
}
