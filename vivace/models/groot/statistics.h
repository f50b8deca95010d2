// What a GR00T checkpoint says of one embodiment: how its state and actions are normalised, and which of its actions
// are steps from the state.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vivace/engine/checkpoint/checkpoint.h"

namespace vivace::models::groot {

/// Least and largest value of each dimension, or their first and 99th percentile, or mean and deviation; of actions a
/// row for each action of a chunk, or one for all.
struct Range {
  int64_t dims = 0;
  std::vector<float> low, high;    // [rows, dims]
  std::vector<uint8_t> deviation;  // [dims]: whether they are mean and deviation
  int64_t rows() const { return dims == 0 ? 0 : static_cast<int64_t>(low.size()) / dims; }
};

struct GrootStatistics {
  std::string source, tag;           // the file, for reports; the embodiment's name
  int embodiment = -1;               // its number, by embodiment_id.json
  Range state, actions;
  /// Of each value of the state: where it goes, and where its cosine, if it goes as sine and cosine; else -1.
  struct Place {
    int64_t at, cosine;
  };
  std::vector<Place> places;
  int64_t network_state = 0;         // values that the state becomes
  std::vector<int> reference;        // of each action: the value of the state that it is a step from; -1: none
  /// An end effector's pose, place and two rows of a rotation, as a motion from where it is: its first value in actions
  /// and in the state.
  struct Pose {
    int64_t action, state;
  };
  static constexpr int64_t kPose = 9;
  std::vector<Pose> poses;
  int64_t horizon = 0;               // actions of a chunk that mean something; 0: not said
  bool clip = true;
  std::vector<std::string> cameras;

  bool present() const { return state.dims > 0; }
  /// Whether some actions are steps from the state, or motions from its pose.
  bool relative() const;
  /// To [-1, 1], 0 of a dimension that never moved; or by mean and deviation, where that is 0 as it is; or to its sine.
  float normalize(float x, size_t dim) const;
  /// The whole state as the network takes it, network_state values.
  void normalize(std::span<const float> own, float* out) const;
  /// Action `row` of a chunk in the robot's units. `x`: the network's, its first actions.dims values; `state`: the
  /// robot's own.
  void unnormalize(const float* x, size_t row, const float* state, float* out) const;
};

/// Reads statistics.json, processor_config.json and embodiment_id.json beside the checkpoint. `tag`: the embodiment's
/// name; empty: that of number `embodiment`, or, of -1, the only one. Errors: NotFound says where was looked;
/// InvalidArgument lists the names there are; CorruptData; Unsupported (an end effector's relative pose in another form
/// than place and two rows of a rotation).
Result<GrootStatistics> read_statistics(const engine::Checkpoint& checkpoint, const std::string& tag, int embodiment);

/// The number of `tag` in embodiment_id.json. Errors: InvalidArgument lists the names there are, or says that there is
/// no such file.
Result<int> embodiment_of(const engine::Checkpoint& checkpoint, const std::string& tag);

}  // namespace vivace::models::groot
