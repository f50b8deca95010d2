// As std_msgs/msg/String.
#pragma once
#include <memory>
#include <string>

namespace std_msgs::msg {
struct String {
  using ConstSharedPtr = std::shared_ptr<const String>;
  std::string data;
};
}  // namespace std_msgs::msg
