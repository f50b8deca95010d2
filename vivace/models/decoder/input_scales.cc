#include "vivace/models/decoder/input_scales.h"

#include <algorithm>

#include "vivace/base/check.h"
#include "vivace/models/decoder/kv_scales.h"
#include "vivace/models/decoder/pipeline.h"

namespace vivace::models::decoder {
namespace {

using engine::Checkpoint;
using engine::TensorEntry;

constexpr const char* kSuffix = ".input_scale";

/// Products that take the rows of a site; none of experts, whose rows stay 16-bit.
std::vector<const char*> products_of(const DecoderConfig& c, int64_t layer, int64_t site) {
  const bool carries = c.is_recurrent(static_cast<size_t>(layer));
  switch (site) {
    case kAttentionIn:
      if (carries && c.has(kKeyGroups)) return {"linear_attn.in_proj_qkvz"};
      if (carries) return {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z"};
      return {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"};
    case kAttended: return {carries ? "linear_attn.out_proj" : "self_attn.o_proj"};
    case kMlpIn: return c.has(kExperts) ? std::vector<const char*>{} : std::vector{"mlp.gate_proj", "mlp.up_proj"};
    default: return c.has(kExperts) ? std::vector<const char*>{} : std::vector{"mlp.down_proj"};
  }
}

/// Calls f(site, tensor or null) for each product of layers.
template <class F>
void each_product(const Checkpoint& checkpoint, const DecoderConfig& c, F&& f) {
  for (int64_t site = 0; site + 1 < site_count(c); ++site) {
    const int64_t layer = site / kSites;
    const std::string of =
        strf("model.%slayers.%ld.", c.has(kNested) ? "language_model." : "", static_cast<long>(layer));
    for (const char* product : products_of(c, layer, site % kSites)) f(site, checkpoint.find(of + product + kSuffix));
  }
}

}  // namespace

bool has_input_scales(const Checkpoint& checkpoint, const DecoderConfig& c) {
  bool all = checkpoint.format() == engine::Format::safetensors;
  if (all) each_product(checkpoint, c, [&](int64_t, const TensorEntry* e) { all = all && e != nullptr; });
  return all;
}

Result<InputScales> read_input_scales(const Checkpoint& checkpoint, const DecoderConfig& c) {
  InputScales scales;
  if (!has_input_scales(checkpoint, c)) return scales;
  std::vector<std::pair<int64_t, const TensorEntry*>> all;
  each_product(checkpoint, c, [&](int64_t site, const TensorEntry* e) { all.emplace_back(site, e); });
  if (const TensorEntry* const head = checkpoint.find(std::string("lm_head") + kSuffix); head != nullptr) {
    scales.head = true;
    all.emplace_back(site_count(c) - 1, head);
  }
  std::vector<float> sites(static_cast<size_t>(site_count(c)));
  for (const auto& [site, entry] : all) {
    VV_ASSIGN(const std::vector<float> value, positive_scales(checkpoint, *entry));
    if (value.size() != 1)
      return Status(Code::kInvalidShape,
                    "tensor " + entry->name + ": wanted one scale, [1], got " + to_string(entry->shape));
    float& largest = sites[static_cast<size_t>(site)];
    largest = std::max(largest, value[0]);
  }
  std::replace(sites.begin(), sites.end(), 0.0f, 1.0f);
  scales.tensors = static_cast<int64_t>(all.size());
  scales.sites = std::move(sites);
  return scales;
}

}  // namespace vivace::models::decoder
