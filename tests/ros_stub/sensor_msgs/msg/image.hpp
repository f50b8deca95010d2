// As sensor_msgs/msg/Image: the fields that examples/ros2 reads.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace sensor_msgs::msg {
struct Image {
  using ConstSharedPtr = std::shared_ptr<const Image>;
  uint32_t height = 0, width = 0, step = 0;
  std::string encoding;
  std::vector<uint8_t> data;
};
}  // namespace sensor_msgs::msg
