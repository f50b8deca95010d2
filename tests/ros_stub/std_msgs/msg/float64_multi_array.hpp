// As std_msgs/msg/Float64MultiArray, without its layout.
#pragma once
#include <vector>

namespace std_msgs::msg {
struct Float64MultiArray {
  std::vector<double> data;
};
}  // namespace std_msgs::msg
