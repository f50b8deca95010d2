// Statistics of a robot's state and actions, as openpi and lerobot keep and apply them.
#pragma once
#include <string>
#include <vector>

#include "vivace/engine/checkpoint/checkpoint.h"

namespace vivace::models::vla {

/// One normalisation of a vector. `low` and `high` are mean and deviation, q01 and q99, or least and largest.
struct Scaler {
  enum class Kind : uint8_t { identity, mean_std, quantiles, min_max };
  enum class Flavour : uint8_t { openpi, lerobot };  // where the epsilon goes, and f64 or f32
  Kind kind = Kind::identity;
  Flavour flavour = Flavour::openpi;
  std::vector<double> low, high;

  int64_t size() const { return static_cast<int64_t>(low.size()); }
  float normalize(float x, size_t dim) const;
  float unnormalize(float x, size_t dim) const;
};

/// What a checkpoint says of one robot.
struct Statistics {
  std::string source;      // the file, for reports
  Scaler state, actions;   // of sizes of the robot's own
};

/// Reads openpi's norm_stats.json, in the checkpoint's folder or under assets/, or lerobot's processor files with
/// their state files. `robot` picks one of several folders of assets; `quantiles`: which of openpi's two pairs the
/// family uses. Errors: NotFound says where was looked; InvalidArgument lists the robots there are, or names a
/// dimension that never moved (high == low), by which nothing can be divided; CorruptData, also where a dimension's
/// values leave f32. openpi's of as many dimensions as the network has (`state_dim`, `action_dim`) were padded with
/// zeros at their end, which are left out.
Result<Statistics> read_statistics(const engine::Checkpoint& checkpoint, const std::string& robot, bool quantiles,
                                   int64_t state_dim = 0, int64_t action_dim = 0);

}  // namespace vivace::models::vla
