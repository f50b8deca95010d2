#include "vivace/engine/weight_uploader.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <utility>

#include "vivace/base/check.h"
#include "vivace/base/float_types.h"
#include "vivace/engine/blocks.h"
#include "vivace/ops/registry.h"

namespace vivace::engine {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kBlockScaled = 16;         // columns that share a scale of FP4
constexpr int64_t kCastBlock = 32 << 20;  // bytes that come over before they are cast: the whole ring at work
constexpr int64_t kDrawn = 1 << 22;  // random values made on the host; larger matrices repeat them

int64_t rounded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// Any weight as a matrix of its innermost rows. Strided ones are matrices already.
Tensor matrix(const Tensor& t) {
  if (t.shape.rank == 2) return t;
  const int64_t inner = t.shape[t.shape.rank - 1];
  return tensor(t.data, t.dtype, Shape(inner == 0 ? 0 : t.shape.elements() / inner, inner), t.place);
}

/// A vector as rows of one element; a matrix as it is.
Tensor matrix_of_rows(const Tensor& t) {
  return t.shape.rank == 2 ? t : tensor(t.data, t.dtype, Shape(t.shape[0], 1), t.place);
}

/// Rows as the words they consist of, which a cast from f32 to f32 leaves as they are.
bool has_words(const Tensor& t) { return row_bytes(t.dtype, t.shape[1]) % 4 == 0; }
Tensor words(Tensor t) {
  t.shape.dim[1] = row_bytes(t.dtype, t.shape[1]) / 4, t.stride[0] = row_bytes(t.dtype, t.stride[0]) / 4;
  t.dtype = DType::f32;
  return t;
}

/// Rows of `from`, dense, to where `to`'s rows lie; both in host memory.
void lay(const void* from, const Tensor& to) {
  const int64_t bytes = row_bytes(to.dtype, to.shape[1]), pitch = row_bytes(to.dtype, to.stride[0]);
  for (int64_t r = 0; r < to.shape[0]; ++r)
    std::memcpy(static_cast<char*>(to.data) + r * pitch, static_cast<const char*>(from) + r * bytes,
                static_cast<size_t>(bytes));
}

Tensor at(Tensor t, void* data, Place place) {
  t.data = data;
  t.place = place;
  return t;
}

/// n values of a normal distribution with deviation 0.02, as `dtype`; the same every time.
std::vector<std::byte> normals(int64_t n, DType dtype) {
  std::vector<std::byte> bytes(static_cast<size_t>(row_bytes(dtype, n)));
  uint64_t state = 0x9e3779b97f4a7c15;
  const auto uniform = [&state] {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return static_cast<float>(state >> 40) * 0x1p-24f;
  };
  for (int64_t i = 0; i < n; ++i) {
    float sum = -6;  // of twelve uniform values: normal enough, and cheap
    for (int k = 0; k < 12; ++k) sum += uniform();
    const float v = 0.02f * sum;
    const uint16_t half = bf16_of_f32(v);
    if (dtype == DType::f32) std::memcpy(&bytes[static_cast<size_t>(4 * i)], &v, 4);
    else std::memcpy(&bytes[static_cast<size_t>(2 * i)], &half, 2);
  }
  return bytes;
}

}  // namespace

/// What filling needs besides the region: made when first asked for, freed when all is filled.
struct WeightUploader::Scratch {
  Runtime& runtime;
  exec::Buffer raw, behind, order, whole, maxima;
  std::map<DType, exec::Buffer> values;  // random ones, kDrawn of each dtype that was asked for

  /// At least `bytes`, contents free for use: everything queued is done.
  Result<void*> at_least(exec::Buffer* buffer, int64_t bytes) {
    VV_TRY(runtime.stream().synchronize());
    if (buffer->bytes() < static_cast<size_t>(bytes)) {
      *buffer = exec::Buffer();  // before its successor, so that both need not fit
      VV_ASSIGN(*buffer, runtime.reserve("scratch of loading", static_cast<size_t>(bytes)));
    }
    return buffer->data();
  }
  Result<Tensor> upload(const Tensor& t) {
    VV_ASSIGN(void* const to, at_least(&raw, t.span_bytes()));
    const Upload one[] = {{to, t.data, static_cast<size_t>(t.span_bytes())}};
    VV_TRY(runtime.upload(one));
    return at(t, to, runtime.place());
  }
  /// 0, 1, 2, ...: a block format becomes plain by looking up its rows in order.
  Result<Tensor> numbers(int64_t n) {
    if (order.bytes() < static_cast<size_t>(n) * 4) {
      VV_ASSIGN(void* const to, at_least(&order, n * 4));
      std::vector<int32_t> all(static_cast<size_t>(n));
      for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<int32_t>(i);
      const Upload one[] = {{to, all.data(), all.size() * 4}};
      VV_TRY(runtime.upload(one));
    }
    return tensor(order.data(), DType::i32, Shape(n), runtime.place());
  }
  Result<const void*> drawn(DType dtype) {
    exec::Buffer& buffer = values[dtype];
    if (buffer.data() != nullptr) return buffer.data();
    std::vector<std::byte> all = normals(kDrawn, is_block(dtype) ? DType::f32 : dtype);
    if (is_block(dtype)) {
      std::vector<std::byte> blocks(static_cast<size_t>(row_bytes(dtype, kDrawn)));
      VV_TRY(encode_blocks(tensor(all.data(), DType::f32, Shape(1, kDrawn)), dtype, blocks.data()));
      all = std::move(blocks);
    }
    VV_ASSIGN(void* const to, at_least(&buffer, static_cast<int64_t>(all.size())));
    const Upload one[] = {{to, all.data(), all.size()}};
    VV_TRY(runtime.upload(one));
    return to;
  }
};

bool WeightUploader::Group::plain() const {
  const auto stays = [&](const Tensor& t) { return t.dtype == to.dtype; };
  return scale.empty() && rows != Rows::alternate && std::all_of(from.begin(), from.end(), stays) &&
         std::all_of(behind.begin(), behind.end(), stays);
}

bool WeightUploader::Group::casts() const {
  if (drawn() || plain() || !scale.empty()) return false;
  if (is_block(to.dtype))
    return std::all_of(from.begin(), from.end(), [&](const Tensor& t) { return t.dtype == to.dtype && has_words(t); });
  const auto block = [](const Tensor& t) { return is_block(t.dtype); };
  return std::none_of(from.begin(), from.end(), block) && std::none_of(behind.begin(), behind.end(), block);
}

Tensor WeightUploader::Group::part_of(const Tensor& all, size_t i) const {
  if (rows == Rows::after) {
    int64_t first = 0;
    for (size_t k = 0; k < i; ++k) first += from[k].shape[0];
    Tensor t = slice(all, first, from[i].shape[0]);
    t.shape = from[i].shape;
    return t;
  }
  if (rows == Rows::within) {
    Tensor t = all;
    for (size_t k = 0; k < i; ++k)
      t.data = static_cast<char*>(t.data) + from[k].shape[1] * row_bytes(t.dtype, t.shape[2]);
    t.shape = from[i].shape;
    t.shape.dim[0] = all.shape[0];
    return t;
  }
  Tensor t = slice(all, static_cast<int64_t>(i), from[i].shape[0]);
  t.stride[0] *= static_cast<int64_t>(from.size());
  return t;
}

std::vector<WeightUploader::Group::Piece> WeightUploader::Group::pieces(const Tensor& all) const {
  std::vector<Piece> pieces;
  for (size_t i = 0; i < from.size(); ++i) {
    const Tensor part = part_of(all, i);
    if (rows != Rows::within) {
      pieces.push_back({from[i], part});
      continue;
    }
    const auto expert = [&](const Tensor& t, int64_t e) {
      return tensor(slice(t, e, 1).data, t.dtype, Shape(t.shape[1], t.shape[2]), t.place);
    };
    const int64_t E = from[i].shape[0];
    for (int64_t e = 0; e < E; ++e) pieces.push_back({expert(from[i], e), expert(part, e)});
    if (!behind.empty()) pieces.push_back({behind[i], expert(part, E)});
  }
  return pieces;
}

void WeightUploader::declare(std::initializer_list<Tensor*> parts, Tensor* whole, std::vector<Tensor*> scale,
                             DType dtype, Rows rows, bool bias, std::vector<Tensor> behind) {
  Group g{parts, {}, whole, std::move(scale), {}, {}, rows, bias, {}, std::move(behind)};
  Shape shape = (*parts.begin())->shape;
  const int joined = rows == Rows::within ? 1 : 0;
  shape.dim[joined] = 0;
  for (const Tensor* part : parts) {
    shape.dim[joined] += part->shape[joined];
    g.from.push_back(*part);
  }
  if (!g.behind.empty()) ++shape.dim[0];
  const auto reserve = [this](DType type, Shape s) {
    const Tensor t = tensor(reinterpret_cast<void*>(bytes_), type, s);
    bytes_ += rounded(t.span_bytes());
    return t;
  };
  g.to = reserve(dtype, shape);
  if (g.scale.size() == 2)
    g.to_scale = {reserve(DType::e4m3, Shape(shape.dim[0], shape.dim[1] / kBlockScaled)),
                  reserve(DType::f32, Shape(1))};
  if (g.scale.size() == 1)
    g.to_scale = {reserve(DType::f32, shape.rank == 3 ? Shape(shape.dim[0], shape.dim[1]) : Shape(shape.dim[0]))};
  groups_.push_back(std::move(g));
}

void WeightUploader::add(Tensor* t, DType dtype, bool bias) { declare({t}, nullptr, {}, dtype, Rows::after, bias); }

void WeightUploader::join(std::initializer_list<Tensor*> parts, Tensor* whole, DType dtype, Rows rows, bool bias) {
  declare(parts, whole, {}, dtype, rows, bias);
}

void WeightUploader::join_experts(Tensor* gate, Tensor* up, const Tensor& last_gate, const Tensor& last_up,
                                  DType dtype) {
  declare({gate, up}, nullptr, {}, dtype, Rows::within, false, {last_gate, last_up});
}

void WeightUploader::quantize_experts(Tensor* gate, Tensor* up, const Tensor& last_gate, const Tensor& last_up,
                                      Tensor* scale) {
  declare({gate, up}, nullptr, {scale}, DType::e4m3, Rows::within, false,
          last_gate.present() ? std::vector<Tensor>{last_gate, last_up} : std::vector<Tensor>{});
}

void WeightUploader::quantize(std::initializer_list<Tensor*> parts, Tensor* whole, Tensor* scale, Rows rows) {
  declare(parts, whole, {scale}, DType::e4m3, rows, false);
}

void WeightUploader::quantize_block_scaled(std::initializer_list<Tensor*> parts, Tensor* whole, Tensor* block_scale,
                                           Tensor* whole_scale, Rows rows) {
  declare(parts, whole, {block_scale, whole_scale}, DType::e2m1, rows, false);
}

void WeightUploader::keep_block_scaled(std::initializer_list<Tensor*> parts, std::vector<Scales> scales, Tensor* whole,
                                       Tensor* block_scale, Tensor* whole_scale, Rows rows) {
  declare(parts, whole, {block_scale, whole_scale}, DType::e2m1, rows, false);
  groups_.back().given = std::move(scales);
}

void WeightUploader::keep_scaled(std::initializer_list<Tensor*> parts, std::vector<Scales> scales, Tensor* whole,
                                 Tensor* scale, Rows rows) {
  declare(parts, whole, {scale}, DType::e4m3, rows, false);
  groups_.back().given = std::move(scales);
}

Status WeightUploader::commit(Runtime& runtime) {
  if (groups_.empty()) return {};
  VV_ASSIGN(region_, runtime.reserve("weights", static_cast<size_t>(bytes_)));
  return commit_at(runtime, region_.data());
}

Status WeightUploader::commit_at(Runtime& runtime, void* region) {
  const auto placed = [&](const Tensor& t) {
    return at(t, static_cast<char*>(region) + reinterpret_cast<int64_t>(t.data), runtime.place());
  };
  std::vector<Upload> copies;
  for (Group& g : groups_) {
    g.to = placed(g.to);
    for (Tensor& t : g.to_scale) t = placed(t);
    if (g.drawn() || !g.plain()) continue;
    for (const Group::Piece& p : g.pieces(g.to))
      copies.push_back({p.to.data, p.from.data, static_cast<size_t>(p.from.span_bytes())});
  }
  VV_TRY(runtime.upload(copies));
  Scratch scratch{runtime, {}, {}, {}, {}, {}, {}};
  VV_TRY(cast_all(runtime, scratch));
  for (const Group& g : groups_)
    if ((g.drawn() || !g.plain()) && !g.casts()) VV_TRY(fill(runtime, g, scratch));
  VV_TRY(runtime.stream().synchronize());
  for (const Group& g : groups_) {
    const bool views = g.scale.empty() || g.rows == Rows::within;
    for (size_t i = 0; views && i < g.parts.size(); ++i) *g.parts[i] = g.part_of(g.to, i);
    if (g.whole != nullptr) *g.whole = g.to;
    for (size_t i = 0; i < g.scale.size(); ++i) *g.scale[i] = g.to_scale[i];
  }
  return {};
}

Status WeightUploader::cast_all(Runtime& runtime, Scratch& scratch) const {
  std::vector<Group::Piece> blocks;  // of rows, what is cast at once
  int64_t most = 0;
  for (const Group& g : groups_) {
    if (!g.casts()) continue;
    for (const Group::Piece& p : g.pieces(g.to)) {
      const bool blocks_stay = is_block(p.to.dtype);
      const Tensor from = blocks_stay ? words(matrix(p.from)) : matrix(p.from),
                   to = blocks_stay ? words(matrix(p.to)) : matrix(p.to);
      const int64_t row = row_bytes(from.dtype, from.shape[1]),
                    rows = std::max<int64_t>(1, kCastBlock / std::max<int64_t>(1, row));
      for (int64_t first = 0; first < from.shape[0]; first += rows) {
        const int64_t n = std::min(rows, from.shape[0] - first);
        blocks.push_back({slice(from, first, n), slice(to, first, n)});
        most = std::max(most, n * row);
      }
    }
  }
  if (most == 0) return {};
  void* room[2];
  VV_ASSIGN(room[0], scratch.at_least(&scratch.raw, most));
  VV_ASSIGN(room[1], scratch.at_least(&scratch.behind, most));
  ops::Recorder rec(runtime.stream());
  std::function<Status()> wait[2];
  const auto run = [&]() -> Status {
    for (size_t i = 0; i < blocks.size() + 1; ++i) {
      if (i < blocks.size()) {
        const Tensor& from = blocks[i].from;
        const Upload one[] = {{room[i % 2], from.data, static_cast<size_t>(from.span_bytes())}};
        VV_ASSIGN(wait[i % 2], runtime.begin_upload(one));
      }
      if (i == 0) continue;
      const Group::Piece& p = blocks[i - 1];
      const std::function<Status()> arrived = std::exchange(wait[(i - 1) % 2], {});
      VV_TRY(arrived());
      VV_TRY(rec(ops::cast, {{"x", at(p.from, room[(i - 1) % 2], runtime.place())}, {"out", p.to}}));
      VV_TRY(runtime.stream().synchronize());  // its room is the next block's
    }
    return {};
  };
  Status status = run();
  for (const std::function<Status()>& w : wait)
    if (w) static_cast<void>(w());  // on its way when another failed
  return status;
}

Status WeightUploader::fill(Runtime& runtime, const Group& g, Scratch& scratch) const {
  if (!g.given.empty()) return g.rows == Rows::alternate ? keep_in_turn(runtime, g, scratch) : keep(runtime, g);
  if (!g.drawn() && is_block(g.to.dtype)) return encode(runtime, g);
  if (!g.drawn() && !g.scale.empty() && g.of_experts()) return quantize_by_expert(runtime, g, scratch);
  ops::Recorder rec(runtime.stream());
  Tensor to = g.to;
  if (!g.scale.empty()) {
    const Tensor whole = tensor(nullptr, DType::bf16, g.to.shape, runtime.place());
    VV_ASSIGN(void* const data, scratch.at_least(&scratch.whole, whole.span_bytes()));
    to = at(whole, data, runtime.place());
  }
  if (g.drawn()) VV_TRY(draw(runtime, g, to, scratch));
  for (const Group::Piece& p : g.drawn() ? std::vector<Group::Piece>{} : g.pieces(to)) {
    VV_ASSIGN(const Tensor raw, scratch.upload(p.from));
    const Tensor from = matrix(raw), out = matrix(p.to);
    if (is_block(from.dtype)) {
      VV_ASSIGN(const Tensor ids, scratch.numbers(from.shape[0]));
      VV_TRY(rec(ops::embedding, {{"table", from}, {"ids", ids}, {"out", out}}));
    } else {
      VV_TRY(rec(ops::cast, {{"x", from}, {"out", out}}));
    }
  }
  return g.scale.empty() ? Status() : quantize(runtime, g, to, scratch);
}

Status WeightUploader::encode(Runtime& runtime, const Group& g) const {
  std::vector<std::byte> blocks, all(static_cast<size_t>(g.rows == Rows::alternate ? g.to.span_bytes() : 0));
  for (const Group::Piece& p : g.pieces(g.rows == Rows::alternate ? at(g.to, all.data(), Place::host) : g.to)) {
    const void* from = p.from.data;
    if (p.from.dtype != p.to.dtype) {
      blocks.resize(static_cast<size_t>(row_bytes(p.to.dtype, p.from.shape.elements())));
      VV_TRY(encode_blocks(matrix(p.from), p.to.dtype, blocks.data()));
      from = blocks.data();
    }
    if (g.rows == Rows::alternate) {
      lay(from, p.to);
      continue;
    }
    const Upload one[] = {
        {p.to.data, from, static_cast<size_t>(row_bytes(p.to.dtype, p.from.shape.elements()))}};
    VV_TRY(runtime.upload(one));
  }
  const Upload one[] = {{g.to.data, all.data(), all.size()}};
  return all.empty() ? Status() : runtime.upload(one);
}

Status WeightUploader::keep(Runtime& runtime, const Group& g) const {
  std::vector<Upload> copies;
  const auto copy = [&](const Tensor& to, const Tensor& from) {
    copies.push_back({to.data, from.data, static_cast<size_t>(from.span_bytes())});
  };
  if (g.to_scale.size() == 2) copy(g.to_scale[1], g.given.front().whole);
  int64_t row = 0;
  for (size_t i = 0; i < g.from.size(); row += g.from[i++].shape[0]) {
    copy(slice(g.to, row, 1), g.from[i]);
    copy(slice(g.to_scale[0], row, 1), g.to_scale.size() == 2 ? g.given[i].block : g.given[i].row);
  }
  return runtime.upload(copies);
}

Status WeightUploader::keep_in_turn(Runtime& runtime, const Group& g, Scratch& scratch) const {
  ops::Recorder rec(runtime.stream());
  std::vector<std::byte> all(static_cast<size_t>(g.to_scale[0].span_bytes()));  // of scales, few beside the codes
  const Tensor scales = matrix_of_rows(at(g.to_scale[0], all.data(), Place::host));
  for (size_t i = 0; i < g.from.size(); ++i) {
    VV_ASSIGN(const Tensor codes, scratch.upload(g.from[i]));
    const Tensor to = g.part_of(g.to, i);
    const bool fours = has_words(codes);  // else bytes, as which e4m3 is cast to itself
    VV_TRY(rec(ops::cast, {{"x", fours ? words(codes) : codes}, {"out", fours ? words(to) : to}}));
    lay((g.to_scale.size() == 2 ? g.given[i].block : g.given[i].row).data, g.part_of(scales, i));
  }
  std::vector<Upload> copies = {{g.to_scale[0].data, all.data(), all.size()}};
  if (g.to_scale.size() == 2) copies.push_back({g.to_scale[1].data, g.given.front().whole.data, sizeof(float)});
  return runtime.upload(copies);
}

Status WeightUploader::quantize_by_expert(Runtime& runtime, const Group& g, Scratch& scratch) const {
  ops::Recorder rec(runtime.stream());
  const Tensor matrices = matrix(g.to);
  for (const Group::Piece& p : g.pieces(g.to)) {
    const int64_t experts = p.to.shape.rank == 3 ? p.to.shape[0] : 1;
    for (int64_t e = 0; e < experts; ++e) {
      const auto expert = [&](const Tensor& t) { return matrix(t.shape.rank == 3 ? slice(t, e, 1) : t); };
      const Tensor to = expert(p.to);
      VV_ASSIGN(const Tensor raw, scratch.upload(expert(p.from)));
      const Tensor half = tensor(nullptr, DType::bf16, to.shape, runtime.place());
      VV_ASSIGN(void* const data, scratch.at_least(&scratch.whole, half.span_bytes()));
      const Tensor from = at(half, data, runtime.place());
      if (is_block(raw.dtype)) {
        VV_ASSIGN(const Tensor ids, scratch.numbers(raw.shape[0]));
        VV_TRY(rec(ops::embedding, {{"table", raw}, {"ids", ids}, {"out", from}}));
      } else {
        VV_TRY(rec(ops::cast, {{"x", raw}, {"out", from}}));
      }
      const int64_t row = (static_cast<char*>(to.data) - static_cast<char*>(g.to.data)) / to.shape[1];
      const Tensor scales = tensor(g.to_scale[0].data, DType::f32, Shape(matrices.shape[0]), runtime.place());
      VV_TRY(rec(ops::quantize, {{"x", from}, {"out", to}, {"row_scale", slice(scales, row, to.shape[0])}}));
    }
  }
  return {};
}

Status WeightUploader::quantize(Runtime& runtime, const Group& g, const Tensor& from, Scratch& scratch) const {
  ops::Recorder rec(runtime.stream());
  if (g.to.dtype == DType::e4m3) {
    const Tensor scales = tensor(g.to_scale[0].data, DType::f32, Shape(matrix(g.to).shape[0]), runtime.place());
    return rec(ops::quantize, {{"x", matrix(from)}, {"out", matrix(g.to)}, {"row_scale", scales}});
  }
  std::vector<float> largest(static_cast<size_t>(from.shape[0]));
  VV_ASSIGN(void* const data, scratch.at_least(&scratch.maxima, from.shape[0] * 4));
  VV_TRY(rec(ops::reduce, {{"x", from}, {"out", tensor(data, DType::f32, Shape(from.shape[0]), runtime.place())}},
             {{"kind", "amax"}}));
  VV_TRY(runtime.stream().copy(largest.data(), data, largest.size() * 4));
  VV_TRY(runtime.stream().synchronize());
  // The largest block's scale is e4m3's largest, so that the small ones keep their bits.
  const float amax = *std::max_element(largest.begin(), largest.end()), whole = amax > 0 ? amax / (6 * 448) : 1;
  const Upload one[] = {{g.to_scale[1].data, &whole, sizeof(whole)}};
  VV_TRY(runtime.upload(one));
  Tensor bytes = tensor(g.to.data, DType::u8, Shape(g.to.shape[0], g.to.shape[1] / 2), runtime.place());
  Tensor scales = tensor(g.to_scale[0].data, DType::e4m3, Shape(g.to_scale[0].shape.elements()), runtime.place());
  return rec(ops::quantize_block_scaled,
             {{"x", from}, {"out", bytes}, {"scales", scales}, {"tensor_scale", g.to_scale[1]}});
}

Status WeightUploader::draw(Runtime& runtime, const Group& g, const Tensor& to, Scratch& scratch) const {
  ops::Recorder rec(runtime.stream());
  if (to.shape.rank == 1) return rec(ops::fill, {{"out", matrix(to)}}, {{"value", g.bias ? 0.0 : 1.0}});
  if (to.dtype != DType::f32 && to.dtype != DType::bf16 && !is_block(to.dtype))
    return Status(Code::kUnsupported, strf("random weights: wanted f32, bf16 or blocks, got %s", name(to.dtype)));
  VV_ASSIGN(const void* const values, scratch.drawn(to.dtype));
  const int64_t block = row_bytes(to.dtype, kDrawn), bytes = to.span_bytes();
  for (int64_t done = 0; done < bytes; done += block)
    VV_TRY(runtime.stream().copy(static_cast<char*>(to.data) + done, values,
                                 static_cast<size_t>(std::min(block, bytes - done))));
  return {};
}

}  // namespace vivace::engine
