// Where words lie: cross-attention made into one image of tokens by time, and the path through it.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "vivace/engine/speech.h"

namespace vivace::models::whisper {

/// `weights`: [heads, tokens, columns] of attention, which are changed. Each column less its mean over tokens and over
/// its deviation, a median of 7 along columns (reflected at the ends), the mean of the heads: [tokens, columns].
std::vector<float> alignment_weights(std::vector<float>* weights, int64_t heads, int64_t tokens, int64_t columns);

/// Of the path from the first token and column to the last ones with the largest sum, which goes on by a token, a
/// column, or both: the first column of each token.
std::vector<int32_t> first_hits(std::span<const float> weights, int64_t tokens, int64_t columns);

/// The same image while text grows: each row stands against those before it.
class Follower {
 public:
  Follower(const engine::SpeechFollow& follow, int64_t columns)
      : follow_(&follow),
        columns_(columns),
        mean_(follow.heads.size() * static_cast<size_t>(columns)),
        square_(mean_.size()),
        row_(mean_.size()) {}

  /// n more rows of a head: attention weights [n, columns].
  void add(size_t head, const float* weights, int64_t n);
  /// After all heads of n rows.
  void end(int64_t n) { rows_ += n; }
  /// The place that the newest row hears the most, of what is heard.
  int32_t place() const;

 private:
  const engine::SpeechFollow* follow_;
  int64_t columns_, rows_ = 0;
  std::vector<double> mean_, square_;  // [heads, columns]: over rows, and the sum of squares around it
  std::vector<float> row_;             // the newest
};

}  // namespace vivace::models::whisper
