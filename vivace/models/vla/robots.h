// Robots: by which names one sends its cameras and its state, and what it makes of actions.
#pragma once
#include <string>
#include <vector>

#include "vivace/engine/fields.h"
#include "vivace/models/vla/config.h"

namespace vivace::models::vla {

/// What a robot's fields became; memory is kept from one reading to the next.
struct RobotInputs {
  std::vector<engine::Frame> views;           // a camera slot each; point into the fields' memory or into `pixels`
  std::vector<float> state;
  std::string_view prompt;                    // into the fields' memory
  bool has_prompt = false;
  std::vector<std::vector<uint8_t>> pixels;   // of frames that came as floats, a slot each
};

/// The row that a checkpoint's statistics are of, by the path of their file; empty where none is.
std::string robot_of(std::string_view statistics);

class Robot {
 public:
  struct Camera {
    std::string key;
    int slot;          // of the policy's; -1: taken and not used, as openpi does
    bool needed;       // else it may be missing, and is off
  };
  struct Part {
    std::string key;
    int count;         // values; 0: as many as come
  };

  /// A row of the table ("aloha", "aloha_sim", "droid", "libero"), or "any": cameras by the names of `cameras` under
  /// images/, in order of their slots, and one vector "state", or both as lerobot names them (observation.images.NAME,
  /// observation.state, task). `codes`: for a family whose actions are tokens (kCodes), whose cameras lie in other
  /// slots. Errors: InvalidArgument lists the rows.
  static Result<Robot> named(std::string_view name, bool codes, const std::vector<std::string>& cameras);
  /// Camera slots of a row.
  static int slots(std::string_view name, bool codes);
  /// Names there are, for messages.
  static std::string names();

  const std::string& name() const { return name_; }
  const std::vector<Camera>& cameras() const { return cameras_; }
  const std::vector<Part>& state() const { return state_; }
  /// Actions that the robot takes, of as many as the policy has.
  int dims(int robot_dim) const { return dims_ == 0 || dims_ > robot_dim ? robot_dim : dims_; }
  /// Whether this robot's cameras and state fit the policy. Errors: InvalidArgument, InvalidShape.
  Status fits(const engine::PolicyLimits& limits) const;

  /// Frames [height, width, 3] or [3, height, width] of u8, or of floats in [0, 1]; state of any number type. Errors,
  /// which name the field: InvalidArgument (a name this robot does not have, a camera or the state missing, a value
  /// that is not finite or outside [0, 1]), InvalidShape, InvalidDType.
  Status read(std::span<const engine::Field> fields, const engine::PolicyLimits& limits, RobotInputs* to) const;
  /// Whether the robot's actions say where its joints will be, so that roll() works.
  bool rolls() const { return rolls_; }
  /// The state of `inputs`, as read() made it, after `actions` [n, dims] of the robot's own: where the last of them
  /// leads, or, where actions are `steps`, the state and their sum. Values beyond them stay, as do grippers of ALOHA,
  /// whose commands have another unit. Errors: Unsupported (a robot whose actions are no positions), InvalidArgument
  /// (there is no state).
  Status roll(std::span<const float> actions, int dims, bool steps, RobotInputs* inputs) const;
  /// A policy's action [robot_dim], in place, as the robot takes its first dims().
  void to_robot(std::span<float> action) const;

 private:
  Status camera(const Camera& c, const engine::Field& field, RobotInputs* to) const;

  std::string name_;
  std::vector<Camera> cameras_;
  std::vector<Part> state_;
  std::vector<int> black_;     // slots that openpi shows a black image instead of turning them off
  int dims_ = 0;
  bool aloha_ = false;         // joints and grippers differ from those of pi's own arms
  bool rolls_ = true;
};

}  // namespace vivace::models::vla
