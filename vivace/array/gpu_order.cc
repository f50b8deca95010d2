// Sorting, searching, gathers and running sums of arrays on a GPU: which kernels of kernels/map/order.cuh, and when.
#include <utility>

#include "vivace/array/gpu.h"
#include "vivace/array/types.h"
#include "vivace/base/check.h"

namespace vivace::array {
namespace {

using kernels::kOrderItems;

const char* elem_name(Elem e) { return e == Elem::boolean ? "boolean" : name(e); }

int64_t divided_up(int64_t n, int64_t by) { return (n + by - 1) / by; }

template <class Args>
Status run(const OrderKernel& k, const Args& args, int device, const Exec& exec) {
  return gpu_order(k, &args, sizeof args, device, exec);
}

Status used(std::initializer_list<const Array*> arrays, const Exec& exec) {
  for (const Array* a : arrays)
    if (a != nullptr) VV_TRY(after_use(*a, exec));
  return {};
}
Status using_next(std::initializer_list<const Array*> arrays, const Exec& exec) {
  for (const Array* a : arrays)
    if (a != nullptr) VV_TRY(before_use(*a, exec));
  return {};
}

struct Rows {
  explicit Rows(const Array& x)
      : n(x.shape.dim[x.shape.rank - 1]), count(n == 0 ? 0 : x.size() / n), threads(kernels::order_threads(n)),
        tiles(divided_up(n, int64_t{threads} * kOrderItems)) {}
  int64_t n, count;
  int threads;
  int64_t tiles;
};

}  // namespace

jit::Source OrderKernel::source(Arch arch) const {
  return {expression,
          "#include \"vivace/kernels/map/order.cuh\"\n",
          {"vivace::kernels::" + expression},
          {"--fmad=false"},
          arch};
}

Status gpu_scan(bool product, const Array& x, const Exec& exec) {
  const Rows r(x);
  if (x.size() == 0) return {};
  const char* const called = product ? "cumulative_prod" : "cumulative_sum";
  const std::string types = strf("vivace::kernels::Elem::%s, %s", elem_name(x.elem), product ? "true" : "false");
  const auto kernel = [&](const char* of, const char* more, int64_t blocks, int threads, int64_t bytes) {
    return OrderKernel{called, strf("%s<%s%s>", of, types.c_str(), more), blocks, threads, bytes};
  };
  VV_TRY(using_next({&x}, exec));
  kernels::ScanLaunch a{x.data, x.data, nullptr, r.n, r.tiles};
  Array partial;
  if (r.tiles > 1) {
    VV_ASSIGN(partial, empty(x.elem, Shape(r.count * r.tiles), x.device()));
    VV_TRY(using_next({&partial}, exec));
    a.partial = partial.data;
    VV_TRY(run(kernel("scan_totals", "", r.count * r.tiles, r.threads, x.nbytes()), a, x.device(), exec));
    VV_TRY(run(kernel("scan_partials", "", r.count, r.threads, 2 * partial.nbytes()), a, x.device(), exec));
  }
  const char* const threads = r.threads == 32 ? ", 32" : ", 256";
  VV_TRY(run(kernel("scan_rows", threads, r.count * r.tiles, r.threads, 2 * x.nbytes()), a, x.device(), exec));
  return used({&x, r.tiles > 1 ? &partial : nullptr}, exec);
}

Result<Array> gpu_sort(const Array& x, bool descending, bool order, const Exec& exec) {
  const Rows r(x);
  const int device = x.device();
  const char* const called = order ? "argsort" : "sort";
  if (r.n > UINT32_MAX)
    return Status(Code::kUnsupported,
                  strf("array.%s: rows of %lld elements, at most 2^32 - 1", called, static_cast<long long>(r.n)));
  const bool wide = unit_bytes(x.elem) == 8;
  const Elem key = wide ? Elem::u64 : Elem::u32;
  Array keys[2], places[2];
  const bool merges = r.tiles > 1;
  for (int i = 0; i < (merges ? 2 : 1); ++i) {
    VV_ASSIGN(places[i], empty(Elem::u32, x.shape, device));
    if (!merges) break;
    VV_ASSIGN(keys[i], empty(key, x.shape, device));
  }
  const Array* const all[] = {&x, &places[0], merges ? &places[1] : nullptr, merges ? &keys[0] : nullptr,
                              merges ? &keys[1] : nullptr};
  VV_TRY(using_next({all[0], all[1], all[2], all[3], all[4]}, exec));
  if (x.size() > 0) {
    const int64_t moved = x.size() * (4 + (merges ? unit_bytes(key) : 0));
    const OrderKernel tiles{called,
                            strf("sort_tiles<vivace::kernels::Elem::%s, %s, %d>", elem_name(x.elem),
                                 descending ? "true" : "false", r.threads),
                            r.count * r.tiles, r.threads, x.nbytes() + moved};
    const kernels::TilesLaunch first{x.data, merges ? keys[0].data : nullptr,
                                     reinterpret_cast<uint32_t*>(places[0].data), r.n, r.tiles};
    VV_TRY(run(tiles, first, device, exec));
    const OrderKernel join{called, wide ? "merge_runs<uint64_t>" : "merge_runs<uint32_t>", r.count * r.tiles, r.threads,
                           2 * moved};
    for (int64_t length = int64_t{r.threads} * kOrderItems; length < r.n; length *= 2) {
      const bool last = 2 * length >= r.n;
      const kernels::MergeLaunch m{keys[0].data, reinterpret_cast<const uint32_t*>(places[0].data),
                                   last ? nullptr : keys[1].data, reinterpret_cast<uint32_t*>(places[1].data),
                                   r.n, length, r.tiles};
      VV_TRY(run(join, m, device, exec));
      std::swap(keys[0], keys[1]);
      std::swap(places[0], places[1]);
    }
  }
  VV_TRY(used({all[0], all[1], all[2], all[3], all[4]}, exec));
  if (order) return copy(places[0], Elem::i64, exec);
  VV_ASSIGN(const Array out, empty(x.elem, x.shape, device));
  kernels::GatherLaunch g{};
  g.total = x.size(), g.length = g.count = r.n, g.inner = 1;
  VV_TRY(gpu_gather(x, places[0], out, g, unit_bytes(x.elem), true, exec));
  return out;
}

Result<Array> gpu_searchsorted(const Array& x, const Array& values, bool right, const Array* sorter, const Exec& exec) {
  const int device = values.device();
  VV_ASSIGN(const Array out, empty(Elem::i64, values.shape, device));
  if (out.size() == 0) return out;
  VV_TRY(using_next({&x, &values, sorter, &out}, exec));
  VV_ASSIGN(int64_t* const bad, bad_place(device));
  const kernels::SearchLaunch a{x.data, sorter != nullptr ? reinterpret_cast<const int64_t*>(sorter->data) : nullptr,
                                values.data, reinterpret_cast<int64_t*>(out.data), x.size(), values.size(), bad};
  const OrderKernel k{"searchsorted",
                      strf("search<vivace::kernels::Elem::%s, %s, %s>", elem_name(x.elem), right ? "true" : "false",
                           sorter != nullptr ? "true" : "false"),
                      divided_up(values.size(), kernels::kMapThreads), kernels::kMapThreads,
                      values.nbytes() + out.nbytes()};
  VV_TRY(run(k, a, device, exec));
  VV_TRY(used({&x, &values, sorter, &out}, exec));
  return out;
}

Status gpu_gather(const Array& x, const Array& at, const Array& to, kernels::GatherLaunch g, int bytes, bool along,
                  const Exec& exec) {
  if (g.total == 0) return {};
  VV_TRY(using_next({&x, &at, &to}, exec));
  // Whole lines move in units as wide as addresses and lines allow.
  for (int64_t unit = 16; !along && bytes < 16 && unit > bytes; unit /= 2) {
    const auto fits = [&](const char* p) { return reinterpret_cast<uintptr_t>(p) % static_cast<uintptr_t>(unit) == 0; };
    if (g.inner * bytes % unit != 0 || !fits(x.data) || !fits(to.data)) continue;
    const int64_t by = unit / bytes;
    g.inner /= by, g.total /= by, bytes = static_cast<int>(unit);
  }
  const bool places = at.elem == Elem::u32;
  g.x = x.data, g.at = at.data, g.out = to.data, g.bad = nullptr;
  if (!places) {
    VV_ASSIGN(g.bad, bad_place(to.device()));
  }
  const OrderKernel k{along ? "take_along_axis" : "take",
                      strf("gather<%d, %s, %s, %s>", bytes, along ? "true" : "false", places ? "uint32_t" : "int64_t",
                           g.total < INT32_MAX - kernels::kMapThreads ? "int" : "int64_t"),
                      divided_up(g.total, kernels::kMapThreads), kernels::kMapThreads, at.nbytes() + 2 * to.nbytes()};
  VV_TRY(run(k, g, to.device(), exec));
  return used({&x, &at, &to}, exec);
}

}  // namespace vivace::array
