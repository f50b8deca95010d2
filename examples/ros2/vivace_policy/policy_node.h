// PolicyNode: cameras and joints of ROS 2 topics to a policy behind `vivace serve-policy`, its actions to a controller.
#pragma once
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <rclcpp/rclcpp.hpp>
#include <sensor_msgs/msg/image.hpp>
#include <sensor_msgs/msg/joint_state.hpp>
#include <std_msgs/msg/float64_multi_array.hpp>
#include <std_msgs/msg/string.hpp>

#include "vivace/serve/robot_client.h"

namespace vivace_policy {

/// Topics. In: `images/<camera>` (Image, rgb8 or bgr8), `joint_states`, `prompt` (String). Out: `commands`
/// (Float64MultiArray, what forward_command_controller takes).
/// Parameters, read once: host, port, hz, cameras, joints (names, in the policy's order), prompt, seed,
/// max_step (of a command in a tick), max_observation_age and watchdog (s), relative (actions are steps from where the
/// joints are, not targets).
/// Callbacks and the timer are one executor thread's. The link has a thread of its own and no callback waits for it.
class PolicyNode : public rclcpp::Node {
 public:
  explicit PolicyNode(const rclcpp::NodeOptions& node = rclcpp::NodeOptions()) : Node("vivace_policy", node) {
    cameras_ = declare_parameter("cameras", std::vector<std::string>{"front"});
    joints_ = declare_parameter("joints", std::vector<std::string>{});
    prompt_ = declare_parameter("prompt", std::string());
    relative_ = declare_parameter("relative", false);
    seed_ = static_cast<uint64_t>(declare_parameter("seed", int64_t{1}));
    most_age_ = declare_parameter("max_observation_age", 0.5);
    const double hz = declare_parameter("hz", 30.0), max_step = declare_parameter("max_step", 0.05);
    if (joints_.empty()) throw std::invalid_argument("vivace_policy: joints: name them in the policy's order");
    if (!(hz > 0 && hz <= 1000)) throw std::invalid_argument("vivace_policy: hz: wanted more than 0, 1000 at most");

    vivace::serve::RobotClientOptions options;
    options.link.host = declare_parameter("host", std::string("127.0.0.1"));
    options.link.port = static_cast<int>(declare_parameter("port", int64_t{8000}));
    options.chunks.horizon = 0;  // the host says how long its chunks are
    options.chunks.join = vivace::serve::ChunkOptions::Join::blend;
    options.chunks.max_step.assign(joints_.size(), static_cast<float>(max_step));
    options.chunks.watchdog = declare_parameter("watchdog", 1.0);
    auto started = vivace::serve::RobotClient::start(options);
    if (!started.ok()) throw std::runtime_error("vivace_policy: " + started.status().to_string());
    robot_ = std::move(started).value();

    for (const std::string& camera : cameras_)
      images_.push_back(create_subscription<sensor_msgs::msg::Image>(
          "images/" + camera, rclcpp::SensorDataQoS(),
          [this, camera](sensor_msgs::msg::Image::ConstSharedPtr image) { take(camera, *image); }));
    state_ = create_subscription<sensor_msgs::msg::JointState>(
        "joint_states", rclcpp::SensorDataQoS(),
        [this](sensor_msgs::msg::JointState::ConstSharedPtr state) { take(*state); });
    words_ = create_subscription<std_msgs::msg::String>("prompt", 10, [this](std_msgs::msg::String::ConstSharedPtr s) {
      if (s->data == prompt_) return;
      prompt_ = s->data;
      robot_->interrupt();
    });
    commands_ = create_publisher<std_msgs::msg::Float64MultiArray>("commands", 10);
    timer_ = create_wall_timer(std::chrono::duration<double>(1 / hz), [this] { tick(); });
  }

 private:
  struct View {
    std::vector<uint8_t> rgb;
    int64_t height = 0, width = 0;
    double seen = -INFINITY;
  };

  static double clock() {
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }

  /// A frame as dense rows of RGB.
  void take(const std::string& camera, const sensor_msgs::msg::Image& image) {
    const bool bgr = image.encoding == "bgr8";
    const size_t row = size_t{image.width} * 3;
    if ((!bgr && image.encoding != "rgb8") || row == 0 || image.height == 0 || image.step < row ||
        image.data.size() / image.step < image.height)
      return warn("images/" + camera + ": wanted rgb8 or bgr8 of whole rows, got " + image.encoding);
    View& view = views_[camera];
    view.rgb.resize(row * image.height);
    for (size_t y = 0; y < image.height; ++y) std::copy_n(&image.data[y * image.step], row, &view.rgb[y * row]);
    if (bgr)
      for (size_t i = 0; i < view.rgb.size(); i += 3) std::swap(view.rgb[i], view.rgb[i + 2]);
    view.height = image.height, view.width = image.width, view.seen = clock();
  }

  /// The positions of this arm's joints; a message may have others too, in any order.
  void take(const sensor_msgs::msg::JointState& state) {
    std::vector<float> at(joints_.size(), NAN);
    for (size_t i = 0; i < state.name.size() && i < state.position.size(); ++i)
      if (const auto j = std::find(joints_.begin(), joints_.end(), state.name[i]); j != joints_.end())
        at[static_cast<size_t>(j - joints_.begin())] = static_cast<float>(state.position[i]);
    if (!std::all_of(at.begin(), at.end(), [](float v) { return std::isfinite(v); }))
      return;  // of other joints, or no number: what is known ages
    joint_ = std::move(at), joint_seen_ = clock();
  }

  /// Whether all that a question holds is there and new.
  bool fresh(double now) const {
    return now - joint_seen_ <= most_age_ && std::all_of(cameras_.begin(), cameras_.end(), [&](const std::string& c) {
      const auto view = views_.find(c);
      return view != views_.end() && now - view->second.seen <= most_age_;
    });
  }

  void tick() {
    const double now = clock();
    if (joint_.empty()) return;  // nobody knows where the arm is: it stays
    if (!begun_) {
      const std::vector<float> still(joints_.size(), 0.0f);
      if (!ok(robot_->begin(relative_ ? still : joint_, now, "ros2", seed_))) return;
      begun_ = true;
    }
    if (robot_->wants(now)) {
      if (fresh(now)) ask(now);
      else warn("cameras or joints are older than max_observation_age: nothing is asked");
    }
    action_.resize(joints_.size());
    vivace::serve::Tick seen;
    if (!ok(robot_->next(now, action_, &seen))) return;
    const bool moves =
        seen.source == vivace::serve::TickSource::chunk || seen.source == vivace::serve::TickSource::blend;
    if (!moves) return;  // the controller holds what it was told last
    if (relative_ && now - joint_seen_ > most_age_) return;  // a step from where the joints were once
    std_msgs::msg::Float64MultiArray command;
    for (size_t i = 0; i < action_.size(); ++i)
      command.data.push_back(double{action_[i]} + (relative_ ? double{joint_[i]} : 0.0));
    commands_->publish(command);
  }

  void ask(double now) {
    message_.clear();
    for (const std::string& camera : cameras_) {
      const View& view = views_[camera];
      message_.picture("images/" + camera, view.rgb.data(), view.height, view.width);
    }
    message_.numbers("state", joint_);
    message_.text("prompt", prompt_);
    static_cast<void>(ok(robot_->ask(now, message_)));
  }

  bool ok(const vivace::Status& s) {
    if (!s.ok()) warn(s.to_string());
    return s.ok();
  }
  void warn(const std::string& what) { RCLCPP_WARN_THROTTLE(get_logger(), *get_clock(), 1000, "%s", what.c_str()); }

  std::vector<std::string> cameras_, joints_;
  std::string prompt_;
  bool relative_ = false, begun_ = false;
  uint64_t seed_ = 1;
  double most_age_ = 0, joint_seen_ = -INFINITY;
  std::map<std::string, View> views_;
  std::vector<float> joint_, action_;
  vivace::serve::RobotMessage message_;
  std::unique_ptr<vivace::serve::RobotClient> robot_;
  std::vector<rclcpp::Subscription<sensor_msgs::msg::Image>::SharedPtr> images_;
  rclcpp::Subscription<sensor_msgs::msg::JointState>::SharedPtr state_;
  rclcpp::Subscription<std_msgs::msg::String>::SharedPtr words_;
  rclcpp::Publisher<std_msgs::msg::Float64MultiArray>::SharedPtr commands_;
  rclcpp::TimerBase::SharedPtr timer_;
};

}  // namespace vivace_policy
