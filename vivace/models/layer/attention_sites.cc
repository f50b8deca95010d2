#include "vivace/models/layer/attention_sites.h"

#include <cmath>

#include "vivace/base/check.h"
#include "vivace/models/layer/views.h"

namespace vivace::models {

Status AttentionSites::check(int site, int64_t layer) const {
  if (site < 0 || site >= static_cast<int>(sites_.size()))
    return Status(Code::kInvalidArgument, strf("attention sites: there are %zu, got site %d", sites_.size(), site));
  const auto layers = static_cast<int64_t>(k_.size() < v_.size() ? k_.size() : v_.size());
  if (layer < 0 || layer >= layers)
    return Status(Code::kInvalidArgument,
                  strf("attention site %s: keys and values of %ld layers are there, got layer %ld",
                       (*this)[site].name.c_str(), static_cast<long>(layers), static_cast<long>(layer)));
  return {};
}

Status AttentionSites::run(ops::Recorder& rec, int site, int64_t layer, const Attending& rows) const {
  VV_TRY(check(site, layer));
  return attend(rec, site, layer, rows, 1);
}

Status AttentionSites::attend(ops::Recorder& rec, int site, int64_t layer, const Attending& rows,
                              double k_factor) const {
  const AttentionSite& s = (*this)[site];
  const double usual = 1 / std::sqrt(static_cast<double>(rows.q.shape[2]));
  const double scale = k_factor == 1 ? s.scale : (s.scale != 0 ? s.scale : usual) * k_factor;
  Status done =
      rec(ops::attention,
          {{"q", rows.q},
           {"k", k_[static_cast<size_t>(layer)]},
           {"v", v_[static_cast<size_t>(layer)]},
           {"pos", rows.pos},
           {"slot", rows.slot},
           {"length", rows.length},
           {"prefix", rows.prefix},
           {"page_table", rows.page_table},
           {"out", rows.out},
           {"out_scale", rows.out_scale},
           {"lse", rows.lse},
           {"words", rows.words},
           {"rows", rows.rows}},
          {{"mask", s.mask}, {"window", s.window}, {"softcap", s.softcap}, {"scale", scale}, {"layout", s.layout}});
  return done.ok() ? Status() : std::move(done).with_context("attention site " + s.name);
}

Status AttentionSites::append(ops::Recorder& rec, int site, int64_t layer, const Projected& from,
                              const Attending& rows) const {
  const AttentionSite& s = (*this)[site];
  return rec(ops::qkv_rope,
             {{"qkv", from.qkv},
              {"q", rows.q},
              {"k_cache", k_[static_cast<size_t>(layer)]},
              {"v_cache", v_[static_cast<size_t>(layer)]},
              {"pos", rows.pos},
              {"slot", rows.slot},
              {"inv_freq", from.inv_freq},
              {"q_norm", from.q_norm},
              {"k_norm", from.k_norm},
              {"page_table", rows.page_table},
              {"shift", from.shift},
              {"axis", from.axis},
              {"rows", rows.rows}},
             {{"style", from.style},
              {"attn_factor", from.attn_factor},
              {"eps", from.eps},
              {"norm_plus_one", from.norm_plus_one ? 1.0 : 0.0},
              {"layout", s.layout}});
}

/// Codes are made by quantize, which divides; kv_append, which has scale 1, then finds values that are codes already.
Status AttentionSites::append_scaled(ops::Recorder& rec, int site, int64_t layer, const Projected& from,
                                     const Attending& rows) const {
  const ScaledCache& scaled = from.scaled;
  const int64_t width = scaled.wide.shape[1] / 2, count = width / rows.q.shape[2];
  const Tensor k = columns(scaled.wide, 0, width), v = columns(scaled.wide, width, width);
  const auto code = [&](const Tensor& x, const Tensor& codes, const Tensor& scale) {
    return rec(ops::quantize, {{"x", x}, {"out", codes}, {"out_scale", scale}, {"rows", rows.rows}});
  };
  VV_TRY(rec(ops::qkv_rope,
             {{"qkv", from.qkv},
              {"q", rows.q},
              {"k_out", heads(k, count)},
              {"v_out", heads(v, count)},
              {"pos", rows.pos},
              {"inv_freq", from.inv_freq},
              {"q_norm", from.q_norm},
              {"k_norm", from.k_norm},
              {"shift", from.shift},
              {"axis", from.axis},
              {"rows", rows.rows}},
             {{"style", from.style},
              {"attn_factor", from.attn_factor},
              {"eps", from.eps},
              {"norm_plus_one", from.norm_plus_one ? 1.0 : 0.0}}));
  VV_TRY(code(k, columns(scaled.codes, 0, width), scaled.k_scale));
  VV_TRY(code(v, columns(scaled.codes, width, width), scaled.v_scale));
  VV_TRY(rec(ops::cast, {{"x", scaled.codes}, {"out", scaled.wide}, {"rows", rows.rows}}));
  return rec(ops::kv_append,
             {{"k", heads(k, count)},
              {"v", heads(v, count)},
              {"pos", rows.pos},
              {"slot", rows.slot},
              {"k_cache", k_[static_cast<size_t>(layer)]},
              {"v_cache", v_[static_cast<size_t>(layer)]},
              {"page_table", rows.page_table},
              {"rows", rows.rows}},
             {{"layout", (*this)[site].layout}});
}

Status AttentionSites::run_apart(ops::Recorder& rec, int site, int64_t layer, const Projected& from,
                                 const Attending& rows) const {
  const AttentionSite& s = (*this)[site];
  Status done = from.scaled.k_scale.present() ? append_scaled(rec, site, layer, from, rows)
                                              : append(rec, site, layer, from, rows);
  if (!done.ok()) return std::move(done).with_context("attention site " + s.name);
  Attending seen = rows;
  if (s.mask == "full") seen.pos = {};  // which every position sees
  return attend(rec, site, layer, seen, from.scaled.k_factor);
}

Status AttentionSites::run(ops::Recorder& rec, int site, int64_t layer, const Projected& from,
                           const Attending& rows) const {
  VV_TRY(check(site, layer));
  const AttentionSite& s = (*this)[site];
  if (!s.one_op) return run_apart(rec, site, layer, from, rows);
  if (s.mask != "causal" || rows.length.present() || rows.prefix.present())
    return Status(Code::kInvalidArgument, strf("attention site %s: rows that are yet to be rotated want mask=causal "
                                               "without length and prefix, got mask=%s",
                                               s.name.c_str(), std::string(s.mask).c_str()));
  if (from.scaled.k_scale.present()) return run_apart(rec, site, layer, from, rows);
  Status done = rec(ops::rope_attention,
                    {{"qkv", from.qkv},
                     {"q", rows.q},
                     {"k_cache", k_[static_cast<size_t>(layer)]},
                     {"v_cache", v_[static_cast<size_t>(layer)]},
                     {"pos", rows.pos},
                     {"slot", rows.slot},
                     {"inv_freq", from.inv_freq},
                     {"q_norm", from.q_norm},
                     {"k_norm", from.k_norm},
                     {"page_table", rows.page_table},
                     {"shift", from.shift},
                     {"axis", from.axis},
                     {"out", rows.out},
                     {"out_scale", rows.out_scale},
                     {"lse", rows.lse},
                     {"words", rows.words},
                     {"rows", rows.rows}},
                    {{"style", from.style},
                     {"attn_factor", from.attn_factor},
                     {"eps", from.eps},
                     {"norm_plus_one", from.norm_plus_one ? 1.0 : 0.0},
                     {"stable", rows.stable ? 1.0 : 0.0},
                     {"window", s.window},
                     {"softcap", s.softcap},
                     {"scale", s.scale},
                     {"layout", s.layout}});
  return done.ok() ? Status() : std::move(done).with_context("attention site " + s.name);
}

}  // namespace vivace::models
