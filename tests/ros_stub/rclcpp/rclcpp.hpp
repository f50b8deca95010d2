// As much of rclcpp as examples/ros2 asks for, so that its node is compiled and driven where no ROS is: topics and
// timers are called by the test's hand.
#pragma once
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace rclcpp {

struct Clock {};
struct Logger {};
struct SensorDataQoS {};

using Value = std::variant<bool, int64_t, double, std::string, std::vector<std::string>>;
struct NodeOptions {
  std::map<std::string, Value> values;
};

class TimerBase {
 public:
  using SharedPtr = std::shared_ptr<TimerBase>;
  double period_s = 0;
  std::function<void()> call;
};

template <class Message>
class Subscription {
 public:
  using SharedPtr = std::shared_ptr<Subscription>;
  std::function<void(typename Message::ConstSharedPtr)> call;
};

template <class Message>
class Publisher {
 public:
  using SharedPtr = std::shared_ptr<Publisher>;
  std::vector<Message> said;
  void publish(const Message& m) { said.push_back(m); }
};

class Node {
 public:
  Node(std::string, NodeOptions options) : options_(std::move(options)) {}
  template <class T>
  T declare_parameter(const std::string& name, T otherwise) {
    const auto at = options_.values.find(name);
    return at == options_.values.end() ? otherwise : std::get<T>(at->second);
  }
  template <class Message, class Qos, class Call>
  auto create_subscription(const std::string& topic, Qos, Call call) {
    auto made = std::make_shared<Subscription<Message>>();
    made->call = call;
    topics_[topic] = made;
    return made;
  }
  template <class Message>
  auto create_publisher(const std::string& topic, int) {
    auto made = std::make_shared<Publisher<Message>>();
    topics_[topic] = made;
    return made;
  }
  template <class Call>
  TimerBase::SharedPtr create_wall_timer(std::chrono::duration<double> period, Call call) {
    timer = std::make_shared<TimerBase>();
    timer->period_s = period.count(), timer->call = call;
    return timer;
  }
  Logger get_logger() { return {}; }
  std::shared_ptr<Clock> get_clock() { return std::make_shared<Clock>(); }

  // The test's side.
  template <class Message>
  void tell(const std::string& topic, const Message& m) {
    static_cast<Subscription<Message>*>(topics_.at(topic).get())->call(std::make_shared<Message>(m));
  }
  template <class Message>
  std::vector<Message>& said(const std::string& topic) {
    return static_cast<Publisher<Message>*>(topics_.at(topic).get())->said;
  }
  TimerBase::SharedPtr timer;
  static inline int warnings = 0;

 private:
  NodeOptions options_;
  std::map<std::string, std::shared_ptr<void>> topics_;
};

inline void init(int, char**) {}
inline void shutdown() {}
inline void spin(const std::shared_ptr<Node>&) {}

}  // namespace rclcpp

#define RCLCPP_WARN_THROTTLE(logger, clock, ms, ...) \
  (static_cast<void>(logger), static_cast<void>(clock), ++::rclcpp::Node::warnings, std::fprintf(stderr, __VA_ARGS__))
