#include "vivace/models/layer/attention_sites.h"

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
  const AttentionSite& s = (*this)[site];
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
           {"rows", rows.rows}},
          {{"mask", s.mask}, {"window", s.window}, {"softcap", s.softcap}, {"scale", s.scale}, {"layout", s.layout}});
  return done.ok() ? Status() : std::move(done).with_context("attention site " + s.name);
}

Status AttentionSites::run_apart(ops::Recorder& rec, int site, int64_t layer, const Projected& from,
                                 const Attending& rows) const {
  const AttentionSite& s = (*this)[site];
  Status done = rec(ops::qkv_rope,
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
                     {"rows", rows.rows}},
                    {{"style", from.style},
                     {"attn_factor", from.attn_factor},
                     {"eps", from.eps},
                     {"norm_plus_one", from.norm_plus_one ? 1.0 : 0.0},
                     {"layout", s.layout}});
  if (!done.ok()) return std::move(done).with_context("attention site " + s.name);
  Attending seen = rows;
  if (s.mask == "full") seen.pos = {};  // which every position sees
  return run(rec, site, layer, seen);
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
