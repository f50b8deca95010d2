// Rotary frequencies of a model's config: base, dims and context scaling -> inv_freq and attn_factor.
#pragma once
#include <cstdint>
#include <vector>

#include "vivace/base/status.h"

namespace vivace::ops {

/// How a model stretches its context.
///   none    inv[i] = base^(-2i/dim), i < dim/2
///   linear  inv / factor
///   ntk     base' = base * factor^(dim / (dim - 2)), else as none
///   llama3  per wavelength 2 pi / inv: above original_context/low_freq inv / factor, below
///           original_context/high_freq unchanged, linear in original_context/wavelength between
///   yarn    per pair, a ramp from inv to inv / factor between the pairs that turn beta_fast and
///           beta_slow times over original_context
enum class RopeKind : int32_t { none, linear, ntk, llama3, yarn };

struct RopeScaling {
  RopeKind kind = RopeKind::none;
  double factor = 1;            // context stretch, >= 1
  double original_context = 0;  // tokens the model was first trained for; llama3 and yarn
  double low_freq = 1;          // llama3
  double high_freq = 4;         // llama3
  double beta_fast = 32;        // yarn
  double beta_slow = 1;         // yarn
  bool truncate = true;         // yarn: ends of the ramp are rounded outwards to whole pairs
  double attn_factor = 0;       // yarn: given by the config; 0 derives it
  double mscale = 0;            // yarn: with mscale_all_dim, both given, the derived factor is
  double mscale_all_dim = 0;    //   m(mscale) / m(mscale_all_dim), m(s) = 0.1 s ln(factor) + 1; else m(1)
};

struct RopeFreqs {
  std::vector<float> inv_freq;  // [dim / 2], computed in double, rounded once
  float attn_factor = 1;        // rope's attribute
};

/// Frequencies of the first `dim` dims of a head. InvalidArgument names the field that is off.
Result<RopeFreqs> rope_freqs(double base, int64_t dim, const RopeScaling& scaling = {});

/// "none" (or "default"), "linear", "ntk", "llama3", "yarn". Unsupported lists these.
Result<RopeKind> rope_kind(const std::string& name);

}  // namespace vivace::ops
