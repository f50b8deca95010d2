// Attention sites: where a model attends. A site fixes mask, window and scale of a kind of layer, a layer its keys and
// values; a pipeline says run(site, layer, ...) and knows neither kernels nor where a cache lies.
#pragma once
#include <span>
#include <string>
#include <vector>

#include "vivace/ops/registry.h"

namespace vivace::models {

/// What all calls of a site have in common: attributes of ops::attention.
struct AttentionSite {
  std::string name;  // for errors
  std::string_view mask = "causal";
  double window = 0, softcap = 0, scale = 0;  // scale 0: 1 / sqrt(D)
  std::string_view layout = "nhd";            // of keys and values
  bool one_op = true;  // from projections on: ops::rope_attention; false: qkv_rope and attention, also where mask is
                       // not causal
};

/// Rows that attend, and what they see. An empty Tensor{} is absent, as for the op.
struct Attending {
  Tensor q, out;                    // [T, Hq, D] x 2
  Tensor pos = {}, slot = {};       // [T] i32
  Tensor length = {}, prefix = {};  // [S] i32
  Tensor page_table = {};           // [S, P] i32: then k and v of a layer are pages
  Tensor lse = {}, rows = {};       // [T, Hq] f32, [1] i32
  Tensor out_scale = {};            // [1] f32 of an out in e4m3
  Tensor words = {};                // i32: see ops::attention
  bool stable = false;              // of projections in one op: see ops::rope_attention
};

/// Of a layer whose e4m3 cache has scales: a key is its code times k_scale, a value its code times v_scale.
struct ScaledCache {
  Tensor k_scale = {}, v_scale = {};  // [1] f32 each, or absent: both are 1
  double k_factor = 1;                // k_scale's value, which scores are multiplied by
  Tensor wide = {}, codes = {};       // scratch, [T, 2 * Hkv * D]: of qkv's type, and e4m3
};

/// Rows before their norms and rotation, as ops::qkv_rope takes them.
struct Projected {
  Tensor qkv;                       // [T, (Hq + 2 Hkv) * D]
  Tensor inv_freq = {};             // [R] f32, or absent
  Tensor q_norm = {}, k_norm = {};  // [D], or absent
  Tensor shift = {}, axis = {};     // [A, T], [R] i32: what angles add to positions, a row an axis; or absent
  std::string_view style = "half";
  double attn_factor = 1, eps = 1e-6;
  bool norm_plus_one = false;
  ScaledCache scaled = {};
};

class AttentionSites {
 public:
  /// Keys and values of each layer, [S, L, Hkv, D] or pages, a site's with layout hnd [S, Hkv, L, D]. Views: whoever
  /// owns them outlives this.
  AttentionSites(std::span<const Tensor> k, std::span<const Tensor> v) : k_(k), v_(v) {}
  /// The number that run() wants.
  int add(AttentionSite site) {
    sites_.push_back(std::move(site));
    return static_cast<int>(sites_.size()) - 1;
  }
  const AttentionSite& operator[](int site) const { return sites_[static_cast<size_t>(site)]; }
  /// Records attention of a layer. Errors: InvalidArgument for a site or layer that is not there, and the op's own,
  /// with the site's name.
  Status run(ops::Recorder& rec, int site, int64_t layer, const Attending& rows) const;
  /// The same from the projections on: norms, rotation and the append to the layer's keys and values first. rows.q is
  /// scratch. A site of one op is causal, and its rows have neither length nor prefix; else InvalidArgument.
  /// With from.scaled keys and values are rounded to qkv's type, divided by their scales and rounded to e4m3. Scores
  /// are those of keys times k_scale; `out` is what values give before v_scale, which the caller's next product takes.
  Status run(ops::Recorder& rec, int site, int64_t layer, const Projected& from, const Attending& rows) const;

 private:
  Status check(int site, int64_t layer) const;
  Status attend(ops::Recorder& rec, int site, int64_t layer, const Attending& rows, double k_factor) const;
  Status append(ops::Recorder& rec, int site, int64_t layer, const Projected& from, const Attending& rows) const;
  Status append_scaled(ops::Recorder& rec, int site, int64_t layer, const Projected& from, const Attending& rows) const;
  Status run_apart(ops::Recorder& rec, int site, int64_t layer, const Projected& from, const Attending& rows) const;

  std::span<const Tensor> k_, v_;
  std::vector<AttentionSite> sites_;
};

}  // namespace vivace::models
