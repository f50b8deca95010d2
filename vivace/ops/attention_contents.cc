#include "vivace/ops/attention_contents.h"

#include "vivace/base/check.h"
#include "vivace/ops/gemm_contents.h"

namespace vivace::ops {
namespace {

bool has(const Call& c, Name port) {
  for (const Port& p : c.spec().ports)
    if (p.key == port.hash) return c[port].present();
  return false;
}

/// Whether a head's rows lie together; ops without the attribute have tokens first.
bool heads_first(const Call& c) {
  constexpr Name kLayout = "layout";
  for (const Attr& a : c.spec().attrs)
    if (a.key == kLayout.hash) return c.flag("layout");
  return false;
}

/// Entries of a port that is not there: none.
Result<std::vector<int32_t>> entries(const Call& c, const Contents& read, Name port) {
  if (!has(c, port)) return std::vector<int32_t>();
  return read(port);
}

Status wrong(const Call& c, const char* port, int64_t at, int64_t value, const std::string& wanted) {
  return c.error(Code::kInvalidArgument, strf("%s[%ld] is %ld, wanted %s", port, static_cast<long>(at),
                                              static_cast<long>(value), wanted.c_str()));
}

Status within(const Call& c, const char* port, const std::vector<int32_t>& values, int64_t count, int64_t low,
              int64_t high, const char* what) {
  for (int64_t i = 0; i < count; ++i)
    if (values[i] < low || values[i] > high)
      return wrong(c, port, i, values[i],
                   strf("%ld to %ld: %s", static_cast<long>(low), static_cast<long>(high), what));
  return {};
}

Status rising(const Call& c, const char* port, const std::vector<int32_t>& values, int64_t most) {
  for (size_t i = 0; i < values.size(); ++i) {
    const int64_t low = i == 0 ? 0 : values[i - 1];
    if (values[i] < low || values[i] > most)
      return wrong(c, port, static_cast<int64_t>(i), values[i],
                   strf("%ld to %ld: offsets rise", static_cast<long>(low), static_cast<long>(most)));
  }
  return {};
}

}  // namespace

Status inspect_attention(const Call& c, const Contents& read) {
  const bool latent = !has(c, "k"), paged = c["page_table"].present(), hnd = !latent && heads_first(c);
  const int64_t B = c.dim("B"), L = c.dim(hnd ? "Hkv" : "L"), P = paged ? c.dim("P") : 0, places = paged ? P * L : L;
  VV_ASSIGN(const std::vector<int32_t> offsets, entries(c, read, "k_offsets"));
  VV_ASSIGN(const std::vector<int32_t> length, read("length"));
  VV_ASSIGN(const std::vector<int32_t> prefix, entries(c, read, "prefix"));
  VV_ASSIGN(const std::vector<int32_t> slot, read("slot"));
  VV_ASSIGN(const std::vector<int32_t> pages, read("page_table"));
  VV_ASSIGN(const int64_t rows, read.rows());
  const int64_t S = !offsets.empty() ? static_cast<int64_t>(offsets.size()) - 1
                    : paged          ? c["page_table"].shape.dim[0]
                                     : B;
  VV_TRY(rising(c, "k_offsets", offsets, L));
  if (has(c, "out_scale")) VV_TRY(inspect_scales(c, read, {"out_scale"}));
  VV_TRY(within(c, "slot", slot, slot.empty() ? 0 : rows, -1, S - 1, "a slot, or -1 for none"));
  for (int64_t s = 0; s < static_cast<int64_t>(length.size()); ++s) {
    const int64_t held = offsets.empty() ? places : offsets[s + 1] - offsets[s];
    if (length[s] < 0 || length[s] > held)
      return wrong(c, "length", s, length[s], strf("0 to the %ld places of its slot", static_cast<long>(held)));
  }
  VV_TRY(within(c, "prefix", prefix, static_cast<int64_t>(prefix.size()), 0, places, "places of a slot"));
  for (int64_t s = 0; paged && s < S; ++s) {
    const int64_t held = length.empty() ? places : length[s];
    for (int64_t p = 0; p * L < held; ++p) {
      const int32_t page = pages[s * P + p];
      if (page < 0 || page >= B)
        return c.error(Code::kInvalidArgument,
                       strf("page_table[%ld, %ld] is %d, wanted 0 to %ld: slot %ld holds %ld places in pages of %ld",
                            static_cast<long>(s), static_cast<long>(p), page, static_cast<long>(B - 1),
                            static_cast<long>(s), static_cast<long>(held), static_cast<long>(L)));
    }
  }
  return {};
}

Status inspect_cache(const Call& c, const Contents& read) {
  if (!c["k_cache"].present()) return {};
  const bool paged = c["page_table"].present();
  const int64_t B = c.dim("B"), L = c.dim(heads_first(c) ? "Hc" : "L"), P = paged ? c.dim("P") : 1,
                S = paged ? c.dim("S") : B;
  VV_ASSIGN(const std::vector<int32_t> pos, read("pos"));
  VV_ASSIGN(const std::vector<int32_t> slot, read("slot"));
  VV_ASSIGN(const std::vector<int32_t> pages, read("page_table"));
  VV_ASSIGN(const int64_t rows, read.rows());
  VV_TRY(within(c, "slot", slot, slot.empty() ? 0 : rows, -1, S - 1, "a slot, or -1 for none"));
  VV_TRY(within(c, "pos", pos, rows, -1, P * L - 1, "a place of a slot, or -1 for none"));
  for (int64_t t = 0; paged && t < rows; ++t) {
    const int64_t s = slot.empty() ? 0 : slot[t];
    if (s < 0 || pos[t] < 0) continue;
    const int64_t p = pos[t] / L;
    const int32_t page = pages[s * P + p];
    if (page < 0 || page >= B)
      return c.error(Code::kInvalidArgument,
                     strf("page_table[%ld, %ld] is %d, wanted 0 to %ld: token %ld goes to place %d of slot %ld",
                          static_cast<long>(s), static_cast<long>(p), page, static_cast<long>(B - 1),
                          static_cast<long>(t), pos[t], static_cast<long>(s)));
  }
  return {};
}

Status inspect_offsets(const Call& c, const Contents& read) {
  VV_ASSIGN(const std::vector<int32_t> offsets, read("offsets"));
  VV_ASSIGN(const std::vector<int32_t> keys, read("k_offsets"));
  VV_TRY(rising(c, "offsets", offsets, c.dim("T")));
  return rising(c, "k_offsets", keys, INT32_MAX);
}

}  // namespace vivace::ops
