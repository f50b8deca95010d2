// As sensor_msgs/msg/JointState: the fields that examples/ros2 reads.
#pragma once
#include <memory>
#include <string>
#include <vector>

namespace sensor_msgs::msg {
struct JointState {
  using ConstSharedPtr = std::shared_ptr<const JointState>;
  std::vector<std::string> name;
  std::vector<double> position;
};
}  // namespace sensor_msgs::msg
