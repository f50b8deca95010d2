#include "vivace/ops/gemm_table.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <mutex>
#include <sstream>
#include <tuple>
#include <vector>

#include "vivace/base/sha256.h"

namespace vivace::ops {
namespace {

constexpr GemmRow kShipped[] = {
#define ROW(dtype, N, K, T, rows, tokens, multicast_x, multicast_w, us) \
  {DType::dtype, N, K, T, rows, tokens, multicast_x, multicast_w, us},
#include "vivace/ops/gemm_rows.inc"
#undef ROW
};

auto key(const GemmRow& r) { return std::tuple(static_cast<int>(r.dtype), r.N, r.K, r.T); }

/// What stops a row from being a tactic, or "".
std::string refuse(const GemmRow& r) {
  if (r.dtype != DType::bf16 && r.dtype != DType::e4m3) return "dtype is bf16 (f16 goes with it) or e4m3";
  if (r.N < 1 || r.K < 1 || r.T < 1) return "N, K and T are at least 1";
  const auto is = [&](const GemmTiles::Layout& l) {
    return l.rows == r.rows && l.tokens == r.tokens && l.multicast_x == r.multicast_x && l.multicast_w == r.multicast_w;
  };
  const bool listed = r.T <= GemmTiles::kFewTokens
                          ? std::any_of(std::begin(GemmTiles::kFew), std::end(GemmTiles::kFew), is)
                          : std::any_of(std::begin(GemmTiles::kMany), std::end(GemmTiles::kMany), is);
  return listed ? ""
                : strf("no tactic has rows=%d tokens=%d multicast_x=%d multicast_w=%d", r.rows, r.tokens, r.multicast_x,
                       r.multicast_w);
}

Result<std::vector<GemmRow>> parse(std::string_view text) {
  std::vector<GemmRow> all;
  std::istringstream lines{std::string(text)};
  std::string line;
  for (int number = 1; std::getline(lines, line); ++number) {
    line = line.substr(0, line.find('#'));
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    std::istringstream words(line);
    std::string dtype, more;
    GemmRow r{};
    words >> dtype >> r.N >> r.K >> r.T >> r.rows >> r.tokens >> r.multicast_x >> r.multicast_w >> r.us;
    if (!words || words >> more)
      return Status(
          Code::kCorruptData,
          strf("gemm tactics, line %d: a row is 'dtype N K T rows tokens multicast_x multicast_w us', got '%s'", number,
               line.c_str()));
    r.dtype = dtype == "bf16" ? DType::bf16 : dtype == "e4m3" ? DType::e4m3 : DType::f32;
    if (const std::string why = refuse(r); !why.empty())
      return Status(Code::kCorruptData, strf("gemm tactics, line %d: %s, got '%s'", number, why.c_str(), line.c_str()));
    all.push_back(r);
  }
  return all;
}

/// Tables of this process. Older ones stay: a reader may still hold one.
struct Tables {
  std::mutex mutex;
  std::vector<std::vector<GemmRow>*> all;
};
Tables& tables() {
  static Tables* t = new Tables;
  return *t;
}

void put(Tables& t, const std::vector<GemmRow>& more) {
  auto* rows = new std::vector<GemmRow>(more);
  const auto same = [](const GemmRow& a, const GemmRow& b) { return a.dtype == b.dtype && a.N == b.N && a.K == b.K; };
  for (const GemmRow& r : kShipped)
    if (std::none_of(more.begin(), more.end(), [&](const GemmRow& m) { return same(m, r); })) rows->push_back(r);
  std::sort(rows->begin(), rows->end(), [](const GemmRow& a, const GemmRow& b) { return key(a) < key(b); });
  t.all.push_back(rows);
}

}  // namespace

Status load_gemm_rows(std::string_view text) {
  Result<std::vector<GemmRow>> rows = parse(text);
  if (!rows.ok()) return std::move(rows).status();
  Tables& t = tables();
  const std::lock_guard lock(t.mutex);
  put(t, *rows);
  return {};
}

Result<std::span<const GemmRow>> gemm_rows() {
  Tables& t = tables();
  const std::lock_guard lock(t.mutex);
  if (t.all.empty()) {
    std::vector<GemmRow> more;
    if (const char* name = std::getenv("VIVACE_TACTICS"); name != nullptr && name[0] != '\0') {
      std::ifstream file(name);
      if (!file) return Status(Code::kNotFound, strf("VIVACE_TACTICS names '%s', which cannot be read", name));
      Result<std::vector<GemmRow>> rows = parse(std::string(std::istreambuf_iterator<char>(file), {}));
      if (!rows.ok()) return std::move(rows).status().with_context(name);
      more = *std::move(rows);
    }
    put(t, more);
  }
  return std::span<const GemmRow>(*t.all.back());
}

std::span<const GemmRow> shipped_gemm_rows() { return kShipped; }

bool portable_only() {
  static const bool on = [] {
    const char* v = std::getenv("VIVACE_PORTABLE");
    return v != nullptr && v[0] == '1';
  }();
  return on;
}

const GemmRow* find_gemm_row(std::span<const GemmRow> rows, DType dtype, int64_t N, int64_t K, int64_t T) {
  const auto wanted = std::tuple(static_cast<int>(dtype), N, K, T);
  const auto row =
      std::lower_bound(rows.begin(), rows.end(), wanted, [](const GemmRow& r, const auto& w) { return key(r) < w; });
  if (row == rows.end() || row->dtype != dtype || row->N != N || row->K != K) return nullptr;
  return row->serves(T) ? &*row : nullptr;
}

std::string print_gemm_rows(std::span<const GemmRow> rows) {
  std::string text = "# gemm tactics: dtype N K T rows tokens multicast_x multicast_w us\n";
  for (const GemmRow& r : rows)
    text += strf("%s %d %d %d %d %d %d %d %.2f\n", name(r.dtype), r.N, r.K, r.T, r.rows, r.tokens, r.multicast_x,
                 r.multicast_w, static_cast<double>(r.us));
  return text;
}

std::string gemm_table_digest(std::span<const GemmRow> rows) { return "sha256:" + hex(sha256(print_gemm_rows(rows))); }

}  // namespace vivace::ops
