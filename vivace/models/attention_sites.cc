#include "vivace/models/attention_sites.h"

namespace vivace::models {

Status AttentionSites::run(ops::Recorder& rec, int site, int64_t layer, const Attending& rows) const {
  if (site < 0 || site >= static_cast<int>(sites_.size()))
    return Status(Code::kInvalidArgument, strf("attention sites: there are %zu, got site %d", sites_.size(), site));
  const AttentionSite& s = sites_[static_cast<size_t>(site)];
  const auto layers = static_cast<int64_t>(k_.size() < v_.size() ? k_.size() : v_.size());
  if (layer < 0 || layer >= layers)
    return Status(Code::kInvalidArgument, strf("attention site %s: keys and values of %ld layers are there, got layer %ld", s.name.c_str(), static_cast<long>(layers), static_cast<long>(layer)));
  Status done = rec(ops::attention,
                    {{"q", rows.q}, {"k", k_[static_cast<size_t>(layer)]}, {"v", v_[static_cast<size_t>(layer)]}, {"pos", rows.pos}, {"slot", rows.slot}, {"length", rows.length},
                     {"prefix", rows.prefix}, {"page_table", rows.page_table}, {"out", rows.out}, {"out_scale", rows.out_scale}, {"lse", rows.lse}, {"rows", rows.rows}},
                    {{"mask", s.mask}, {"window", s.window}, {"softcap", s.softcap}, {"scale", s.scale}, {"layout", s.layout}});
  return done.ok() ? Status() : std::move(done).with_context("attention site " + s.name);
}

}  // namespace vivace::models
