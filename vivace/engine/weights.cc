#include "vivace/engine/weights.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "vivace/base/float_types.h"
#include "vivace/cpu/convert.h"
#include "vivace/cpu/quant/dequantize.h"

namespace vivace::engine {

namespace {

constexpr int64_t kScaleBlock = 128;  // e4m3 weights: rows and columns that share a scale
constexpr int64_t kBlockScaled = 16;  // FP4 weights: columns that share a scale
constexpr const char *kByRow = "e4m3 by row", *kByTensor = "e4m3 by tensor", *kByBlock = "e4m3 by 128 x 128",
                     *kBySixteen = "e2m1 by 16";

std::string with_number(std::string name, const char* mark, int64_t number) {
  if (const size_t at = name.find(mark); at != std::string::npos)
    name.replace(at, std::strlen(mark), std::to_string(number));
  return name;
}

Status wrong_shape(const std::string& name, const Shape& wanted, const Shape& got) {
  return Status(Code::kInvalidShape, "tensor " + name + ": wanted " + to_string(wanted) + ", got " + to_string(got));
}

}  // namespace

std::string WeightSource::name_of(const WeightRule& rule, int layer) const {
  const bool gguf = checkpoint_.format() == Format::gguf;
  const std::string name = gguf ? rule.gguf : rule.hf;
  return with_number(gguf || name.empty() ? name : prefix_ + name, "{}", layer);
}

bool WeightSource::has(const WeightRule& rule, int layer) const {
  const std::string name = name_of(rule, layer);
  return !name.empty() && checkpoint_.find(name) != nullptr;
}

Result<Tensor> WeightSource::get(const WeightRule& rule, int layer) const {
  if (synthetic_) return tensor(nullptr, DType::bf16, rule.shape);
  const std::string name = name_of(rule, layer);
  if (name.find("{e}") != std::string::npos) return gather(rule, name);
  if (rule.rows.group > 0) return gathered_rows(rule, name);
  VV_ASSIGN(const Tensor t, one(name, rule.shape, rule.hf_transposed && checkpoint_.format() == Format::safetensors));
  return layer < 0 || !keeps(t.dtype) ? plain(t) : t;
}

Result<Tensor> WeightSource::one(const std::string& tensor_name, const Shape& shape, bool transposed) const {
  const TensorEntry* e = checkpoint_.find(tensor_name);
  if (const TensorEntry* packed = checkpoint_.find(tensor_name + "_packed"); e == nullptr && packed != nullptr)
    return fp4(*packed, tensor_name, shape, true);
  if (e == nullptr)
    return Status(Code::kNotFound,
                  "tensor " + tensor_name + " is missing; the checkpoint is incomplete or of another family");
  if (e->dtype == DType::u8 && !transposed) return fp4(*e, tensor_name, shape, false);
  const Shape stored = transposed ? Shape(shape[1], shape[0]) : shape;
  const bool vector = !transposed && shape.rank == 2 && shape[0] == 1 && e->shape == Shape(shape[1]);
  if (!(e->shape == stored) && !vector) return wrong_shape(tensor_name, stored, e->shape);
  if (e->dtype == DType::e4m3 && transposed)
    return Status(Code::kUnsupported, "tensor " + tensor_name + ": e4m3 of an [in, out] matrix is not served");
  if (e->dtype == DType::e4m3) return e4m3(*e);
  Tensor t = checkpoint_.tensor(*e);
  if (vector) t = tensor(t.data, t.dtype, shape);
  const int size = is_block(t.dtype) ? 0 : info(t.dtype).bytes;
  if (transposed) {
    if (size == 0) return Status(Code::kUnsupported, "tensor " + tensor_name + ": a block format cannot be transposed");
    const Tensor copy = own(t.dtype, shape);
    const char* from = static_cast<const char*>(t.data);
    char* to = static_cast<char*>(copy.data);
    for (int64_t n = 0; n < shape[0]; ++n)
      for (int64_t k = 0; k < shape[1]; ++k, to += size)
        std::memcpy(to, from + (k * shape[0] + n) * size, static_cast<size_t>(size));
    return copy;
  }
  if (reinterpret_cast<uintptr_t>(t.data) % static_cast<uintptr_t>(size == 0 ? 2 : size) != 0) {
    const Tensor copy = own(t.dtype, t.shape);
    std::memcpy(copy.data, t.data, e->bytes);
    return copy;
  }
  return t;
}

Result<Tensor> WeightSource::gathered_rows(const WeightRule& rule, const std::string& name) const {
  const auto& [group, pieces] = rule.rows;
  int64_t in_group = 0;
  for (const auto& piece : pieces) in_group += piece.rows;
  const int64_t groups = rule.shape[0] / in_group;
  VV_ASSIGN(Tensor whole, one(name, Shape(groups * group, rule.shape[1]), false));
  if (!keeps(whole.dtype)) whole = plain(whole);
  std::unique_ptr<std::byte[]> spent;  // what was copied to be cut up here has no reader behind it
  if (!scaled(whole) && !copies_.empty() && copies_.back().get() == whole.data) {
    spent = std::move(copies_.back());
    copies_.pop_back();
    copied_ -= whole.span_bytes();
  }
  const auto mine_of = [&](const Tensor& all) {
    const Tensor mine = own(all.dtype, Shape(rule.shape[0], all.shape[1]));
    const int64_t row = row_bytes(all.dtype, all.shape[1]);
    char* to = static_cast<char*>(mine.data);
    for (const auto& [first, rows] : pieces)
      for (int64_t i = 0; i < groups; ++i, to += rows * row)
        std::memcpy(to, static_cast<const char*>(all.data) + (i * group + first) * row,
                    static_cast<size_t>(rows * row));
    return mine;
  };
  const Tensor mine = mine_of(whole);
  if (scaled(whole)) {
    WithScales scales = scales_.at(whole.data);
    if (scales.scales.block.present()) scales.scales.block = mine_of(scales.scales.block);
    if (Tensor& row = scales.scales.row; row.present()) {
      const Tensor column = mine_of(tensor(row.data, row.dtype, Shape(row.shape[0], 1)));
      row = tensor(column.data, row.dtype, Shape(column.shape[0]));
    }
    scales_[mine.data] = scales;
  }
  return mine;
}

Result<Tensor> WeightSource::gather(const WeightRule& rule, const std::string& name) const {
  const Shape matrix(rule.shape[1], rule.shape[2]);
  Tensor all;
  for (int64_t i = 0; i < rule.shape[0]; ++i) {
    VV_ASSIGN(const Tensor part, one(with_number(name, "{e}", i), matrix, rule.hf_transposed));
    const DType dtype = scaled(part) ? scales_.at(part.data).wide : part.dtype;
    if (i == 0) all = own(dtype, rule.shape);
    VV_CHECK_EQ(kInvalidDType, std::string(vivace::name(all.dtype)), std::string(vivace::name(dtype)));
    const Tensor to = slice(all, i, 1);
    if (scaled(part)) dequantize(part, static_cast<uint16_t*>(to.data));
    else std::memcpy(to.data, part.data, static_cast<size_t>(part.span_bytes()));
  }
  return all;
}

Result<Tensor> WeightSource::e4m3(const TensorEntry& weight) const {
  const std::string inverse_name = weight.name + "_scale_inv", scale_name = weight.name + "_scale";
  const TensorEntry *inverse = checkpoint_.find(inverse_name), *scale = checkpoint_.find(scale_name);
  if (weight.shape.rank < 2 || weight.shape.rank > 3 || (inverse == nullptr && scale == nullptr))
    return Status(Code::kUnsupported, "tensor " + weight.name + " is e4m3 without scales in " + scale_name + " or " +
                                          inverse_name + "; convert it to bf16 or GGUF");
  if (inverse != nullptr && scale != nullptr)
    return Status(Code::kCorruptData, "tensors " + inverse_name + " and " + scale_name + " are both there: wanted one");
  if (inverse != nullptr) return unblock(weight, *inverse);
  const int64_t N = weight.shape[0];
  const bool matrix = weight.shape.rank == 2, rows = scale->shape == Shape(N) || scale->shape == Shape(N, 1);
  if (matrix && (scale->shape.elements() == 1 || rows)) return rows_of(weight, *scale);
  const auto blocks = [](int64_t n) { return (n + kScaleBlock - 1) / kScaleBlock; };
  if (matrix && !(scale->shape == Shape(blocks(N), blocks(weight.shape[1]))))
    return wrong_shape(scale_name + ", a scale a row, or [1]", Shape(N, 1), scale->shape);
  return unblock(weight, *scale);
}

Result<Tensor> WeightSource::rows_of(const TensorEntry& weight, const TensorEntry& scale) const {
  if (scale.dtype != DType::f32 && scale.dtype != DType::bf16 && scale.dtype != DType::f16)
    return Status(Code::kUnsupported, "tensor " + scale.name + ": wanted f32, bf16 or f16, got " + name(scale.dtype));
  const int64_t N = weight.shape[0], n = scale.shape.elements();
  const Tensor row = own(DType::f32, Shape(N));
  auto* const values = static_cast<float*>(row.data);
  std::vector<std::byte> aligned(scale.bytes);  // where the file's bytes need not be
  std::memcpy(aligned.data(), checkpoint_.tensor(scale).data, scale.bytes);
  cpu::load_f32(aligned.data(), scale.dtype, 0, n, values);
  for (int64_t i = 0; i < n; ++i)
    if (!(values[i] > 0 && std::isfinite(values[i])))
      return Status(Code::kCorruptData, "tensor " + scale.name + ": wanted positive finite scales, got " +
                                            std::to_string(values[i]) + "; fetch the checkpoint again");
  if (n == 1) std::fill_n(values, N, values[0]);
  const Tensor t = tensor(checkpoint_.tensor(weight).data, DType::e4m3, weight.shape);
  scales_[t.data] = {{row, {}, {}}, &weight, 0, scale.dtype == DType::f16 ? DType::f16 : DType::bf16};
  forms_[&weight] = n == 1 ? kByTensor : kByRow;
  return t;
}

Result<Tensor> WeightSource::unblock(const TensorEntry& weight, const TensorEntry& scale) const {
  const TensorEntry* const s = &scale;
  // Of experts in one tensor each has blocks of its own.
  const bool experts = weight.shape.rank == 3;
  const int64_t E = experts ? weight.shape[0] : 1, N = weight.shape[experts ? 1 : 0], K = weight.shape[experts ? 2 : 1];
  const int64_t down = (N + kScaleBlock - 1) / kScaleBlock, across = (K + kScaleBlock - 1) / kScaleBlock;
  const Shape wanted = experts ? Shape(E, down, across) : Shape(down, across);
  if (!(s->shape == wanted)) return wrong_shape(s->name, wanted, s->shape);
  if (s->dtype != DType::f32 && s->dtype != DType::bf16)
    return Status(Code::kUnsupported, "tensor " + s->name + ": wanted f32 or bf16, got " + name(s->dtype));
  const auto* codes = static_cast<const uint8_t*>(checkpoint_.tensor(weight).data);
  const auto* scales = static_cast<const char*>(checkpoint_.tensor(*s).data);
  const Tensor out = own(DType::bf16, weight.shape);
  auto* to = static_cast<uint16_t*>(out.data);
  const auto scale_at = [&](int64_t i) {
    float f;
    uint16_t h;
    if (s->dtype == DType::f32) return std::memcpy(&f, scales + i * 4, 4), f;
    return std::memcpy(&h, scales + i * 2, 2), f32_of_bf16(h);
  };
  for (int64_t row = 0; row < E * N; ++row)
    for (int64_t k0 = 0; k0 < K; k0 += kScaleBlock) {
      const float scale = scale_at((row / N * down + row % N / kScaleBlock) * across + k0 / kScaleBlock);
      for (int64_t k = k0; k < K && k < k0 + kScaleBlock; ++k)
        to[row * K + k] = bf16_of_f32(f32_of_e4m3(codes[row * K + k]) * scale);
    }
  forms_[&weight] = kByBlock;
  dequantized_.insert(&weight);
  return out;
}

Result<Tensor> WeightSource::fp4(const TensorEntry& codes, const std::string& weight, const Shape& shape,
                                 bool divides) const {
  const std::string block_name = weight + "_scale", whole_name = weight + (divides ? "_global_scale" : "_scale_2");
  const TensorEntry *block = checkpoint_.find(block_name), *whole = checkpoint_.find(whole_name);
  if (shape.rank != 2 || block == nullptr || whole == nullptr)
    return Status(Code::kUnsupported, "tensor " + codes.name + " is u8 without scales in " + block_name + " and " +
                                          whole_name + "; convert it to bf16 or GGUF");
  const Shape packed(shape[0], shape[1] / 2), blocks(shape[0], shape[1] / kBlockScaled);
  if (shape[1] % kBlockScaled != 0)
    return Status(Code::kUnsupported, "tensor " + codes.name + ": FP4 rows have a scale for each 16 columns, which " +
                                          std::to_string(shape[1]) + " does not divide into");
  if (codes.dtype != DType::u8)
    return Status(Code::kUnsupported, "tensor " + codes.name + ": wanted u8, got " + name(codes.dtype));
  if (!(codes.shape == packed)) return wrong_shape(codes.name, packed, codes.shape);
  if (!(block->shape == blocks)) return wrong_shape(block_name, blocks, block->shape);
  if (whole->shape.elements() != 1) return wrong_shape(whole_name, Shape(1), whole->shape);
  if (block->dtype != DType::e4m3 || whole->dtype != DType::f32)
    return Status(Code::kUnsupported, "tensors " + block_name + " and " + whole_name + ": wanted e4m3 and f32, got " +
                                          name(block->dtype) + " and " + name(whole->dtype));
  const Tensor t = tensor(checkpoint_.tensor(codes).data, DType::e2m1, shape);
  WithScales scales{{{}, checkpoint_.tensor(*block), own(DType::f32, Shape(1))}, &codes};
  bool numbers = true;
  for (int64_t i = 0; i < blocks.elements(); ++i)
    numbers = numbers && (static_cast<const uint8_t*>(scales.scales.block.data)[i] & 0x7f) != 0x7f;
  if (!numbers)
    return Status(Code::kCorruptData, "tensor " + block_name + ": a scale is NaN; fetch the checkpoint again");
  float value;
  std::memcpy(&value, checkpoint_.tensor(*whole).data, sizeof(value));
  if (!(value > 0 && std::isfinite(value)))
    return Status(Code::kCorruptData,
                  "tensor " + whole_name + ": wanted a positive finite scale, got " + std::to_string(value));
  if (divides) {
    scales.divisor = value;
    value = 1 / value;
    if (!(value > 0 && std::isfinite(value)))
      return Status(Code::kCorruptData, "tensor " + whole_name + ": " + std::to_string(scales.divisor) +
                                            " has no reciprocal in f32; fetch the checkpoint again");
  }
  std::memcpy(scales.scales.whole.data, &value, sizeof(value));
  scales_[t.data] = scales;
  forms_[&codes] = kBySixteen;
  return t;
}

const Scales* WeightSource::scales_of(const Tensor& t) const {
  const auto found = scales_.find(t.data);
  return scaled(t) && found != scales_.end() ? &found->second.scales : nullptr;
}

Tensor WeightSource::widened(const Tensor& t) const {
  const Tensor out = own(scales_.at(t.data).wide, t.shape);
  dequantize(t, static_cast<uint16_t*>(out.data));
  return out;
}

void WeightSource::dequantize(const Tensor& t, uint16_t* to) const {
  constexpr float kValues[] = {0, 0.5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -0.5f, -1, -1.5f, -2, -3, -4, -6};
  const auto& [scales, entry, divisor, wide] = scales_.at(t.data);
  dequantized_.insert(entry);
  const auto* codes = static_cast<const uint8_t*>(t.data);
  if (t.dtype == DType::e4m3) {
    const auto* row = static_cast<const float*>(scales.row.data);
    for (int64_t i = 0; i < t.shape.elements(); ++i) {
      const float value = f32_of_e4m3(codes[i]) * row[i / t.shape[1]];
      to[i] = wide == DType::f16 ? f16_of_f32(value) : bf16_of_f32(value);
    }
    return;
  }
  const float whole = *static_cast<const float*>(scales.whole.data);
  const auto* block = static_cast<const uint8_t*>(scales.block.data);
  for (int64_t i = 0; i < t.shape.elements(); ++i) {  // rows are whole blocks
    const float stored = f32_of_e4m3(block[i / kBlockScaled]);
    const float scale = divisor > 0 ? stored / divisor : stored * whole;  // which may differ in the last bit
    to[i] = bf16_of_f32(kValues[codes[i / 2] >> (i % 2 * 4) & 15] * scale);
  }
}

std::vector<WeightSource::Stored> WeightSource::stored() const {
  std::vector<Stored> all;
  for (const char* form : {kByRow, kByTensor, kByBlock, kBySixteen}) {
    Stored s{form, 0, 0};
    for (const auto& [entry, is] : forms_)
      if (is == form) ++(dequantized_.count(entry) != 0 ? s.dequantized : s.kept);
    if (s.kept + s.dequantized > 0) all.push_back(std::move(s));
  }
  return all;
}

Tensor WeightSource::converted(const Tensor& t, DType to) const {
  const int64_t n = t.shape.elements();
  std::vector<float> values(static_cast<size_t>(n));
  const Tensor out = own(to, t.shape);
  cpu::load_f32(t.data, t.dtype, 0, n, values.data());
  cpu::store_f32(out.data, to, 0, n, values.data());
  return out;
}

Tensor WeightSource::reordered(const Tensor& t, int64_t first, int64_t rows, std::span<const int64_t> order) const {
  const Tensor out = own(t.dtype, t.shape);
  const int64_t row = t.shape.rank == 1 ? info(t.dtype).bytes : row_bytes(t.dtype, t.shape[1]), piece = rows * row;
  std::memcpy(out.data, t.data, static_cast<size_t>(t.shape[0] * row));
  for (size_t i = 0; i < order.size(); ++i)
    std::memcpy(static_cast<char*>(out.data) + first * row + static_cast<int64_t>(i) * piece,
                static_cast<const char*>(t.data) + first * row + order[i] * piece, static_cast<size_t>(piece));
  return out;
}

Tensor WeightSource::reordered_columns(const Tensor& t, std::span<const int64_t> order) const {
  const int64_t columns = t.shape[1] / static_cast<int64_t>(order.size());
  if (columns % info(t.dtype).block != 0) {
    const Tensor wide = own(DType::bf16, t.shape);
    std::vector<float> values(static_cast<size_t>(t.shape[1]));
    for (int64_t n = 0; n < t.shape[0]; ++n) {
      cpu::dequantize_row(t.dtype, static_cast<const char*>(t.data) + n * row_bytes(t.dtype, t.shape[1]), 0, t.shape[1],
                          values.data());
      cpu::store_f32(wide.data, DType::bf16, n * t.shape[1], t.shape[1], values.data());
    }
    return reordered_columns(wide, order);
  }
  const Tensor out = own(t.dtype, t.shape);
  const int64_t piece = row_bytes(t.dtype, columns), count = static_cast<int64_t>(order.size());
  for (int64_t i = 0; i < t.shape[0] * count; ++i)
    std::memcpy(static_cast<char*>(out.data) + i * piece,
                static_cast<const char*>(t.data) + (i / count * count + order[static_cast<size_t>(i % count)]) * piece,
                static_cast<size_t>(piece));
  return out;
}

Tensor WeightSource::own(DType dtype, const Shape& shape) const {
  Tensor t = tensor(nullptr, dtype, shape);
  const int64_t bytes = t.span_bytes();
  copies_.push_back(std::make_unique<std::byte[]>(static_cast<size_t>(bytes)));
  t.data = copies_.back().get();
  copied_ += bytes;
  return t;
}

int64_t WeightSource::bytes() const {
  int64_t total = 0;
  for (const MappedFile& f : checkpoint_.files()) total += static_cast<int64_t>(f.bytes().size());
  return total;
}

Status WeightSource::check_files() const {
  for (const MappedFile& f : checkpoint_.files()) VV_TRY(f.check_in_place());
  return {};
}

Status WeightSource::check_lost() const {
  for (const MappedFile& f : checkpoint_.files())
    if (f.lost()) [[unlikely]] return f.check_in_place();
  return {};
}

void WeightSource::touch() const {
  constexpr size_t kPage = 4096;
  unsigned sum = 0;
  for (const MappedFile& f : checkpoint_.files())
    for (size_t i = 0; i < f.bytes().size(); i += kPage) sum += f.bytes()[i];
  asm volatile("" : : "r"(sum));  // the reads are the point
}

}  // namespace vivace::engine
