#include "vivace/models/vla/robots.h"

#include <algorithm>
#include <cmath>

#include "vivace/base/check.h"
#include "vivace/base/printable.h"
#include "vivace/base/tensor.h"

namespace vivace::models::vla {
namespace {

using engine::Field;
using engine::HostArray;
using Kind = Field::Kind;

constexpr int kMostSlots = 16;

/// openpi's robots. Slots are base, left wrist, right wrist; pi0-FAST was trained with other ones and with black images
/// for those that are missing.
struct Row {
  const char* name;
  std::vector<Robot::Camera> cameras;
  std::vector<Robot::Part> state;
  int dims;
  bool aloha, rolls;
};
const std::vector<Row>& rows() {
  static const std::vector<Robot::Camera> aloha{{"images/cam_high", 0, true},
                                                {"images/cam_left_wrist", 1, false},
                                                {"images/cam_right_wrist", 2, false},
                                                {"images/cam_low", -1, false}};
  static const std::vector<Row> all{
      {"aloha", aloha, {{"state", 14}}, 14, true, true},
      {"aloha_sim", aloha, {{"state", 14}}, 14, false, true},
      {"droid",
       {{"observation/exterior_image_1_left", 0, true}, {"observation/wrist_image_left", 1, true}},
       {{"observation/joint_position", 7}, {"observation/gripper_position", 1}},
       8,
       false,
       false},  // velocities
      {"libero",
       {{"observation/image", 0, true}, {"observation/wrist_image", 1, true}},
       {{"observation/state", 8}},
       7,
       false,
       false},  // turns and ways of the hand, as its controller scales them
  };
  return all;
}

std::string shown(std::string_view name) { return strf("'%s'", printable(name.substr(0, 60)).c_str()); }

std::string shape_of(const HostArray& a) {
  Shape s;
  for (int i = 0; i < a.rank; ++i) s.dim[s.rank++] = a.shape[static_cast<size_t>(i)];
  return to_string(s);
}

/// Whether lerobot calls so what is `key` here: observation.images.NAME, observation.state, task.
bool is_lerobots(std::string_view name, std::string_view key) {
  if (key == "prompt") return name == "task";
  constexpr std::string_view kBefore = "observation";
  if (!name.starts_with(kBefore) || name.size() != kBefore.size() + 1 + key.size()) return false;
  const auto same = [](char a, char b) { return a == b || (a == '.' && b == '/'); };
  name.remove_prefix(kBefore.size());
  return same(name.front(), '/') &&
         std::equal(key.begin(), key.end(), name.begin() + 1, [&](char k, char n) { return same(n, k); });
}

Status add_state(const Robot::Part& part, const Field& field, std::vector<float>* state) {
  const auto add = [&](double v) -> Status {
    const float f = static_cast<float>(v);
    if (!std::isfinite(f)) return Status(Code::kInvalidArgument, part.key + ": a value is not finite");
    state->push_back(f);
    return {};
  };
  int64_t count = 1;
  if (field.kind == Kind::array) {
    if (field.array.rank > 1)
      return Status(Code::kInvalidShape, part.key + ": wanted a vector, got " + shape_of(field.array));
    count = field.array.elements();
  } else if (field.kind != Kind::number) {
    return Status(Code::kInvalidDType, part.key + ": wanted numbers");
  }
  if (part.count != 0 && count != part.count)
    return Status(Code::kInvalidShape,
                  strf("%s: wanted %d values, got %ld", part.key.c_str(), part.count, static_cast<long>(count)));
  for (int64_t i = 0; i < count; ++i)
    VV_TRY(add(field.kind == Kind::array ? engine::value_at(field.array, i) : field.number));
  return {};
}

/// The gripper of an ALOHA arm, from the way of its jaws (0 to 1) to the angle of its motor that pi's arms have (0 to
/// 1): a crank of 22 mm and a rod of 36 mm move the jaws.
float gripper_of_aloha(float opened) {
  const double way = 0.01844 + static_cast<double>(opened) * (0.05800 - 0.01844), crank = 0.022, rod = 0.036;
  const double sine = std::clamp((crank * crank + way * way - rod * rod) / (2 * crank * way), -1.0, 1.0);
  return static_cast<float>((std::asin(sine) - 0.5476) / (1.6296 - 0.5476));
}
/// A policy's gripper, whose zero is 0.5476 of the motor, as a share of what ALOHA's commands span.
float gripper_to_aloha(float angle) {
  return static_cast<float>((static_cast<double>(angle) + 0.5476 + 0.6213) / (1.4910 + 0.6213));
}

constexpr size_t kTurned[] = {1, 2, 8, 9}, kGrippers[] = {6, 13};  // joints of ALOHA that turn the other way

const std::vector<uint8_t>& black() {
  static const std::vector<uint8_t> picture(224 * 224 * 3, 0);
  return picture;
}

}  // namespace

std::string Robot::names() {
  std::string all;
  for (const Row& r : rows()) all += std::string(r.name) + ", ";
  return all + "any";
}

Result<Robot> Robot::named(std::string_view name, bool codes, const std::vector<std::string>& cameras) {
  Robot r;
  r.name_ = name;
  if (name == "any") {
    if (cameras.empty() || cameras.size() > kMostSlots)
      return Status(Code::kInvalidArgument,
                    strf("cameras: a robot of your own has 1 to %d named ones, got %zu", kMostSlots, cameras.size()));
    for (size_t i = 0; i < cameras.size(); ++i) {
      if (cameras[i].empty() || std::count(cameras.begin(), cameras.end(), cameras[i]) > 1)
        return Status(Code::kInvalidArgument, "cameras: wanted names that differ, got " + shown(cameras[i]));
      r.cameras_.push_back({"images/" + cameras[i], static_cast<int>(i), true});
    }
    r.state_ = {{"state", 0}};
    return r;
  }
  for (const Row& row : rows()) {
    if (name != row.name) continue;
    if (!cameras.empty())
      return Status(Code::kInvalidArgument, "cameras: " + r.name_ + " has its own; names of yours are for robot any");
    r.cameras_ = row.cameras, r.state_ = row.state, r.dims_ = row.dims, r.aloha_ = row.aloha, r.rolls_ = row.rolls;
    if (codes && name == "droid") r.cameras_[1].slot = 2, r.black_ = {1};
    if (codes && name == "libero") r.black_ = {2};
    return r;
  }
  return Status(Code::kInvalidArgument, "robot: wanted one of " + names() + ", got " + shown(name));
}

int Robot::slots(std::string_view name, bool codes) {
  const auto robot = named(name, codes, {});
  int last = 0;
  if (!robot.ok()) return last;
  for (const Camera& c : robot->cameras_) last = std::max(last, c.slot + 1);
  for (const int slot : robot->black_) last = std::max(last, slot + 1);
  return last;
}

std::string robot_of(std::string_view statistics) {
  const size_t assets = statistics.rfind("assets/");
  if (assets == std::string_view::npos) return {};
  const std::string_view id = statistics.substr(assets);
  constexpr std::pair<const char*, const char*> kAssets[] = {
      {"aloha_sim", "aloha_sim"}, {"trossen", "aloha"}, {"aloha", "aloha"}, {"droid", "droid"}, {"libero", "libero"}};
  for (const auto& [part, robot] : kAssets)
    if (id.find(part) != std::string_view::npos) return robot;
  return {};
}

Status Robot::fits(const engine::PolicyLimits& limits) const {
  int last = 0;
  for (const Camera& c : cameras_) last = std::max(last, c.slot + 1);
  for (const int slot : black_) last = std::max(last, slot + 1);
  if (last > limits.views)
    return Status(Code::kInvalidArgument,
                  strf("robot %s has cameras in %d slots, the policy has %d; load with num_views=%d", name_.c_str(),
                       last, limits.views, last));
  int count = 0;
  bool any = false;
  for (const Part& p : state_) count += p.count, any = any || p.count == 0;
  if (!any && limits.state_dim != 0 && limits.state_dim != count)
    return Status(Code::kInvalidShape,
                  strf("robot %s has a state of %d values, the checkpoint's statistics have %d; it is of another robot",
                       name_.c_str(), count, limits.state_dim));
  if (dims_ > limits.robot_dim)
    return Status(Code::kInvalidShape,
                  strf("robot %s takes %d actions, the checkpoint's statistics have %d; it is of another robot",
                       name_.c_str(), dims_, limits.robot_dim));
  return {};
}

Status Robot::camera(const Camera& c, const Field& field, RobotInputs* to) const {
  if (field.kind == Kind::nil && !c.needed) return {};
  if (field.kind != Kind::array)
    return Status(Code::kInvalidDType, c.key + ": wanted an image, an array of u8 or floats");
  const HostArray& a = field.array;
  const bool floats = info(a.dtype).is_float;
  if (a.dtype != DType::u8 && !floats)
    return Status(Code::kInvalidDType, c.key + ": wanted u8, or floats in [0, 1], got " + vivace::name(a.dtype));
  const bool pixels = a.rank == 3 && a.shape[2] == 3, planes = a.rank == 3 && a.shape[0] == 3;
  if (pixels == planes)
    return Status(Code::kInvalidShape, c.key + ": wanted [height, width, 3] or [3, height, width], got " + shape_of(a));
  const int64_t height = a.shape[pixels ? 0 : 1], width = a.shape[pixels ? 1 : 2];
  const auto* data = reinterpret_cast<const uint8_t*>(a.data);
  if (floats) {
    auto& own = to->pixels[static_cast<size_t>(std::max(c.slot, 0))];
    own.resize(static_cast<size_t>(a.elements()));
    for (size_t i = 0; i < own.size(); ++i) {
      const double v = engine::value_at(a, static_cast<int64_t>(i));
      if (!(v >= 0 && v <= 1))
        return Status(Code::kInvalidArgument,
                      strf("%s: an image of floats is in [0, 1], got %g; pass u8 for 0 to 255", c.key.c_str(), v));
      own[i] = static_cast<uint8_t>(v * 255 + 0.5);
    }
    data = own.data();
  }
  if (c.slot < 0) return {};
  to->views[static_cast<size_t>(c.slot)] = pixels ? engine::Frame{data, height, width, width * 3, 0}
                                                  : engine::Frame{data, height, width, width, height * width};
  return {};
}

Status Robot::read(std::span<const Field> fields, const engine::PolicyLimits& limits, RobotInputs* to) const {
  to->views.assign(static_cast<size_t>(limits.views), {});
  to->pixels.resize(static_cast<size_t>(limits.views));
  to->state.clear();
  to->has_prompt = false, to->prompt = {};
  size_t known = 0;
  const auto is = [this](const Field& f, std::string_view key) {
    return f.name == key || (name_ == "any" && is_lerobots(f.name, key));
  };
  const Field* twice = nullptr;
  const auto find = [&](std::string_view key) -> const Field* {
    const Field* found = nullptr;
    for (const Field& f : fields) {
      if (!is(f, key)) continue;
      if (found != nullptr) twice = &f;
      ++known, found = &f;
    }
    return found;
  };
  for (const Camera& c : cameras_) {
    const Field* const f = find(c.key);
    if (f != nullptr) VV_TRY(camera(c, *f, to));
    else if (c.needed) return Status(Code::kInvalidArgument, c.key + ": this camera of robot " + name_ + " is missing");
  }
  for (const int slot : black_) to->views[static_cast<size_t>(slot)] = {black().data(), 224, 224, 224 * 3, 0};
  size_t parts = 0;
  for (const Part& p : state_) {
    const Field* const f = find(p.key);
    if (f == nullptr) continue;
    ++parts;
    VV_TRY(add_state(p, *f, &to->state));
  }
  if (parts != state_.size() && (parts > 0 || limits.takes_state || name_ != "any")) {
    for (const Part& p : state_)
      if (std::none_of(fields.begin(), fields.end(), [&](const Field& f) { return is(f, p.key); }))
        return Status(Code::kInvalidArgument, p.key + ": the state of robot " + name_ + " is missing");
  }
  if (const Field* const f = find("prompt"); f != nullptr && f->kind != Kind::nil) {
    if (f->kind != Kind::text) return Status(Code::kInvalidDType, "prompt: wanted a text");
    to->prompt = f->text, to->has_prompt = true;
  }
  if (twice != nullptr)
    return Status(Code::kInvalidArgument, shown(twice->name) + ": this field came before, by another of its names");
  if (known != fields.size())
    for (const Field& f : fields) {
      const auto its = [&](const auto& part) { return is(f, part.key); };
      if (!is(f, "prompt") && std::none_of(cameras_.begin(), cameras_.end(), its) &&
          std::none_of(state_.begin(), state_.end(), its)) {
        std::string all;
        for (const Camera& c : cameras_) all += c.key + ", ";
        for (const Part& p : state_) all += p.key + ", ";
        return Status(Code::kInvalidArgument,
                      shown(f.name) + ": robot " + name_ + " has no such field; its fields: " + all + "prompt");
      }
    }
  if (aloha_) {
    for (const size_t i : kTurned) to->state[i] = -to->state[i];
    for (const size_t i : kGrippers) to->state[i] = gripper_of_aloha(to->state[i]);
  }
  return {};
}

Status Robot::roll(std::span<const float> actions, int dims, bool steps, RobotInputs* inputs) const {
  if (actions.empty()) return {};
  if (!rolls_)
    return Status(Code::kUnsupported,
                  "future_actions: actions of robot " + name_ + " do not say where its joints will be");
  std::vector<float>& state = inputs->state;
  if (state.empty())
    return Status(Code::kInvalidArgument, "future_actions: the state that they lead on from is missing");
  const size_t width = static_cast<size_t>(dims), rows = actions.size() / width;
  const auto holds = [&](const auto& joints, size_t d) {
    return aloha_ && std::find(std::begin(joints), std::end(joints), d) != std::end(joints);
  };
  for (size_t d = 0; d < std::min(width, state.size()); ++d) {
    if (holds(kGrippers, d)) continue;
    const float sign = holds(kTurned, d) ? -1.0f : 1.0f;
    if (!steps) state[d] = sign * actions[(rows - 1) * width + d];
    for (size_t r = 0; steps && r < rows; ++r) state[d] += sign * actions[r * width + d];
  }
  return {};
}

void Robot::to_robot(std::span<float> action) const {
  if (!aloha_) return;
  for (const size_t i : kTurned) action[i] = -action[i];
  for (const size_t i : kGrippers) action[i] = gripper_to_aloha(action[i]);
}

}  // namespace vivace::models::vla
