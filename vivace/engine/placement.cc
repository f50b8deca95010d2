#include "vivace/engine/placement.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/base/float_types.h"
#include "vivace/ops/registry.h"

namespace vivace::engine {
namespace {

constexpr int64_t kAlign = 256;
constexpr int64_t kDrawn = 1 << 22;  // random values made on the host; larger matrices repeat them

int64_t rounded(int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

/// Any weight as a matrix of its innermost rows.
Tensor matrix(const Tensor& t) {
  const int64_t inner = t.shape[t.shape.rank - 1];
  return tensor(t.data, t.dtype, Shape(inner == 0 ? 0 : t.shape.elements() / inner, inner), t.place);
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

void Placement::add(Tensor* t, DType dtype, bool bias) {
  Tensor to = tensor(reinterpret_cast<void*>(bytes_), dtype, t->shape);
  bytes_ += rounded(to.span_bytes());
  items_.push_back({t, *t, to, bias});
}

void Placement::join(std::initializer_list<Tensor*> parts, Tensor* whole, DType dtype, bool bias) {
  joined_.push_back({whole, items_.size(), parts.size()});
  int64_t end = bytes_;
  for (Tensor* part : parts) {
    const Tensor to = tensor(reinterpret_cast<void*>(end), dtype, part->shape);
    end += to.span_bytes();
    items_.push_back({part, *part, to, bias});
  }
  bytes_ = rounded(end);
}

Status Placement::commit(Machine& machine) {
  if (items_.empty()) return {};
  VV_ASSIGN(region_, machine.reserve("weights", static_cast<size_t>(bytes_)));
  std::vector<Upload> copies;
  for (Item& i : items_) {
    i.to = at(i.to, static_cast<char*>(region_.data()) + reinterpret_cast<int64_t>(i.to.data), machine.place());
    if (i.from.data != nullptr && i.from.dtype == i.to.dtype) copies.push_back({i.to.data, i.from.data, static_cast<size_t>(i.from.span_bytes())});
  }
  VV_TRY(machine.upload(copies));
  VV_TRY(convert(machine));
  VV_TRY(draw(machine));
  VV_TRY(machine.stream().synchronize());
  for (const Item& i : items_) *i.target = i.to;
  for (const Joined& j : joined_) {
    Tensor whole = items_[j.first].to;
    for (size_t k = 1; k < j.count; ++k) whole.shape.dim[0] += items_[j.first + k].to.shape[0];
    if (j.whole != nullptr) *j.whole = whole;
  }
  return {};
}

Status Placement::convert(Machine& machine) const {
  int64_t largest = 0, most_rows = 0;
  for (const Item& i : items_)
    if (i.from.data != nullptr && i.from.dtype != i.to.dtype) {
      largest = std::max(largest, i.from.span_bytes());
      most_rows = std::max(most_rows, matrix(i.from).shape[0]);
    }
  if (largest == 0) return {};
  // A block format becomes plain by looking up its rows in order.
  VV_ASSIGN(const exec::Buffer raw, machine.reserve("weights to convert", static_cast<size_t>(largest)));
  VV_ASSIGN(const exec::Buffer order, machine.reserve("rows to convert", static_cast<size_t>(most_rows) * 4));
  std::vector<int32_t> numbers(static_cast<size_t>(most_rows));
  for (size_t n = 0; n < numbers.size(); ++n) numbers[n] = static_cast<int32_t>(n);
  const Upload all_numbers[] = {{order.data(), numbers.data(), numbers.size() * 4}};
  VV_TRY(machine.upload(all_numbers));
  ops::Recorder rec(machine.stream());
  for (const Item& i : items_) {
    if (i.from.data == nullptr || i.from.dtype == i.to.dtype) continue;
    const Upload one[] = {{raw.data(), i.from.data, static_cast<size_t>(i.from.span_bytes())}};
    VV_TRY(machine.upload(one));
    const Tensor from = matrix(at(i.from, raw.data(), machine.place())), to = matrix(i.to);
    const Tensor ids = tensor(order.data(), DType::i32, Shape(from.shape[0]), machine.place());
    if (is_block(from.dtype)) VV_TRY(rec(ops::embedding, {{"table", from}, {"ids", ids}, {"out", to}}));
    else VV_TRY(rec(ops::cast, {{"x", from}, {"out", to}}));
    VV_TRY(machine.stream().synchronize());  // the next one takes raw
  }
  return {};
}

Status Placement::draw(Machine& machine) const {
  ops::Recorder rec(machine.stream());
  exec::Buffer drawn;
  DType drawn_as = DType::f32;
  for (const Item& i : items_) {
    if (i.from.data != nullptr) continue;
    if (i.to.shape.rank == 1) {
      VV_TRY(rec(ops::fill, {{"out", matrix(i.to)}}, {{"value", i.bias ? 0.0 : 1.0}}));
      continue;
    }
    if (i.to.dtype != DType::f32 && i.to.dtype != DType::bf16) return Status(Code::kUnsupported, strf("random weights: wanted f32 or bf16, got %s", name(i.to.dtype)));
    const int64_t block = row_bytes(i.to.dtype, kDrawn), bytes = i.to.span_bytes();
    if (drawn.data() == nullptr || drawn_as != i.to.dtype) {
      const std::vector<std::byte> values = normals(kDrawn, i.to.dtype);
      VV_TRY(machine.stream().synchronize());
      VV_ASSIGN(drawn, machine.reserve("random values", values.size()));
      const Upload one[] = {{drawn.data(), values.data(), values.size()}};
      VV_TRY(machine.upload(one));
      drawn_as = i.to.dtype;
    }
    for (int64_t done = 0; done < bytes; done += block)
      VV_TRY(machine.stream().copy(static_cast<char*>(i.to.data) + done, drawn.data(), static_cast<size_t>(std::min(block, bytes - done))));
  }
  return machine.stream().synchronize();
}

}  // namespace vivace::engine
