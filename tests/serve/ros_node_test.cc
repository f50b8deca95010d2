// examples/ros2 against a policy host, with tests/ros_stub in ROS's place: what it asks, what it commands, and what it
// does with old, odd and missing messages.
#include <gtest/gtest.h>

#include <thread>

#include "examples/ros2/vivace_policy/policy_node.h"
#include "tests/serve/toy_policy.h"
#include "vivace/serve/policy_host.h"

namespace vivace::serve {
namespace {

using sensor_msgs::msg::Image;
using sensor_msgs::msg::JointState;
using std_msgs::msg::Float64MultiArray;
using testing::ToyPolicy;
using vivace_policy::PolicyNode;

const std::vector<std::string> kJoints{"shoulder", "elbow", "wrist"};

class RosNode : public ::testing::Test {
 protected:
  void SetUp() override {
    auto started = PolicyHost::start({.port = 0});
    ASSERT_TRUE(started.ok());
    host = std::move(started).value();
    auto robot = models::vla::Robot::named("any", false, {"front", "above"});
    const auto letters = [](std::string_view task, std::span<const float>) {
      return Result<std::vector<int32_t>>(std::vector<int32_t>(task.begin(), task.end()));
    };
    ASSERT_TRUE(host->serve(policy, *robot, letters).ok());
    rclcpp::Node::warnings = 0;
  }

  std::unique_ptr<PolicyNode> node(std::map<std::string, rclcpp::Value> more = {}) {
    more.merge(std::map<std::string, rclcpp::Value>{{"port", int64_t{host->port()}},
                                                    {"cameras", std::vector<std::string>{"front", "above"}},
                                                    {"joints", kJoints},
                                                    {"prompt", std::string("go")},
                                                    {"max_observation_age", 1e9}});
    return std::make_unique<PolicyNode>(rclcpp::NodeOptions{more});
  }
  static Image image(const std::string& encoding = "rgb8", uint32_t pad = 0) {
    Image i;
    i.height = 4, i.width = 6, i.step = 18 + pad, i.encoding = encoding;
    i.data.assign(size_t{i.step} * i.height, 9);
    return i;
  }
  static JointState joints(double at = 0.25) {
    return {{"gripper", "wrist", "elbow", "shoulder"}, {7.0, at, at, at}};  // others too, in another order
  }
  static void look(PolicyNode& n) {
    n.tell("images/front", image()), n.tell("images/above", image("bgr8", 5)), n.tell("joint_states", joints());
  }
  /// Ticks until there are commands, for 20 s at most.
  static const std::vector<Float64MultiArray>& moved(PolicyNode& n, size_t commands) {
    auto& said = n.said<Float64MultiArray>("commands");
    for (int i = 0; i < 4000 && said.size() < commands; ++i) {
      n.timer->call();
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return said;
  }

  ToyPolicy policy;
  std::unique_ptr<PolicyHost> host;
};

TEST_F(RosNode, CommandsMoveFromWhereTheJointsAreInSmallSteps) {
  const auto n = node();
  EXPECT_DOUBLE_EQ(n->timer->period_s, 1 / 30.0);
  n->timer->call();
  EXPECT_TRUE(n->said<Float64MultiArray>("commands").empty());  // nobody has said where the arm is
  look(*n);
  const auto& said = moved(*n, 10);
  ASSERT_GE(said.size(), 10u);
  std::vector<double> before(3, 0.25);
  for (const auto& command : said) {
    ASSERT_EQ(command.data.size(), 3u);
    for (size_t j = 0; j < 3; ++j) EXPECT_LE(std::abs(command.data[j] - before[j]), 0.05 + 1e-6);
    before = command.data;
  }
  EXPECT_GT(policy.calls, 0);
}

TEST_F(RosNode, RelativeActionsAreAddedToTheJoints) {
  const auto n = node({{"relative", true}});
  look(*n);
  const auto& said = moved(*n, 1);
  ASSERT_GE(said.size(), 1u);
  for (const double v : said[0].data) EXPECT_LE(std::abs(v - 0.25), 0.05 + 1e-6);  // a step from where they are
}

TEST_F(RosNode, RelativeActionsWaitForJointsThatAreKnown) {
  const auto n = node({{"relative", true}, {"max_observation_age", 0.3}});
  for (int i = 0; i < 4000 && n->said<Float64MultiArray>("commands").empty(); ++i) {
    look(*n);  // known all along, however slow the machine
    n->timer->call();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  ASSERT_GE(n->said<Float64MultiArray>("commands").size(), 1u);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  const size_t before = n->said<Float64MultiArray>("commands").size();
  for (int i = 0; i < 20; ++i) n->timer->call();
  EXPECT_EQ(n->said<Float64MultiArray>("commands").size(), before);
}

TEST_F(RosNode, NothingIsAskedOfWhatIsOldOddOrMissing) {
  const auto n = node({{"max_observation_age", 0.0}});
  look(*n);
  for (int i = 0; i < 20; ++i) n->timer->call();
  EXPECT_EQ(policy.calls, 0);
  EXPECT_GT(rclcpp::Node::warnings, 0);
  const auto other = node();
  other->tell("joint_states", joints());
  other->tell("images/front", image());
  Image bad = image("mono8");
  other->tell("images/above", bad);
  bad = image(), bad.data.resize(20);
  other->tell("images/above", bad);
  bad = image(), bad.step = 3;
  other->tell("images/above", bad);
  bad = image(), bad.width = bad.height = 0;
  other->tell("images/above", bad);
  other->tell("joint_states", JointState{{"shoulder"}, {1.0}});  // too few: the arm stays where it was known
  other->tell("joint_states", joints(NAN));
  for (int i = 0; i < 20; ++i) other->timer->call();
  EXPECT_EQ(policy.calls, 0);
  EXPECT_TRUE(other->said<Float64MultiArray>("commands").empty());
}

TEST_F(RosNode, ANewPromptIsAskedAtOnce) {
  const auto n = node();
  look(*n);
  ASSERT_GE(moved(*n, 2).size(), 2u);
  const int before = policy.calls;
  n->tell("prompt", std_msgs::msg::String{"stop"});
  for (int i = 0; i < 2000 && policy.calls == before; ++i) {
    n->timer->call();
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  EXPECT_GT(policy.calls, before);
}

TEST_F(RosNode, StartUpMistakesAreSaid) {
  EXPECT_THROW(node({{"joints", std::vector<std::string>{}}}), std::invalid_argument);
  EXPECT_THROW(node({{"hz", 0.0}}), std::invalid_argument);
  EXPECT_THROW(node({{"max_step", -1.0}}), std::runtime_error);
}

}  // namespace
}  // namespace vivace::serve
