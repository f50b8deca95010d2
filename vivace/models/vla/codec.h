// ActionCodec: chunks of actions as tokens and back: byte-level BPE over quantized cosine coefficients.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::models::vla {

/// Decodes only: policies never encode. The codec of a checkpoint is a folder with tokenizer.json and
/// processor_config.json (scale, min_token).
class ActionCodec {
 public:
  /// `folder`: see above. Errors: NotFound, CorruptData.
  static Result<ActionCodec> open(const std::string& folder);
  /// The same from a tokenizer.json alone.
  static Result<ActionCodec> open(const std::string& tokenizer, double scale, int min_token);

  /// Actions [horizon, dims] of codes, through `out`. A count of coefficients other than horizon * dims is zeros
  /// everywhere when `strict`, as openpi has it; else cut or filled with zeros, as lerobot has it.
  /// Errors: InvalidArgument names a code outside the vocabulary.
  Status decode(std::span<const int32_t> codes, int64_t horizon, int64_t dims, bool strict, std::span<float> out) const;
  size_t size() const { return pieces_.size(); }

 private:
  std::vector<std::string> pieces_;  // bytes of each code
  double scale_ = 10;
  int min_token_ = -354;
};

}  // namespace vivace::models::vla
