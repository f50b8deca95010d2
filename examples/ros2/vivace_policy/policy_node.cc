// ros2 run vivace_policy policy_node --ros-args -p joints:="[a, b, c]"
#include "policy_node.h"

#include <cstdio>
#include <exception>

int main(int argc, char** argv) {
  rclcpp::init(argc, argv);
  try {
    rclcpp::spin(std::make_shared<vivace_policy::PolicyNode>());
  } catch (const std::exception& e) {
    std::fprintf(stderr, "%s\n", e.what());
    return 1;
  }
  rclcpp::shutdown();
  return 0;
}
