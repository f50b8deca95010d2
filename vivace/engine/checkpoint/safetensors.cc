// safetensors: u64 header length, JSON header, then the data without gaps. And the index of a
// sharded one.
#include <algorithm>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/json.h"
#include "vivace/engine/checkpoint/parse.h"

namespace vivace::engine {
namespace {

constexpr size_t kMaxShards = 4096;

struct NamedType {
  std::string_view name;
  DType dtype;
};
constexpr NamedType kTypes[] = {
    {"F64", DType::f64},   {"F32", DType::f32},      {"F16", DType::f16},
    {"BF16", DType::bf16}, {"F8_E4M3", DType::e4m3}, {"F8_E5M2", DType::e5m2},
    {"I64", DType::i64},   {"I32", DType::i32},      {"I16", DType::i16},
    {"I8", DType::i8},     {"U8", DType::u8},        {"BOOL", DType::boolean}};

Result<DType> dtype_of(const JsonValue& value) {
  VV_ASSIGN(const std::string_view text, value.as_string());
  for (const NamedType& t : kTypes)
    if (t.name == text) return t.dtype;
  return value.error(Code::kUnsupported, "element type " + quote(text) +
                                             " is not read; store the tensor as F32, F16, BF16, "
                                             "F8_E4M3, F8_E5M2, an I type, U8 or BOOL");
}

Result<Shape> shape_of(const JsonValue& value) {
  VV_TRY(value.as_array().status());
  if (value.size() > static_cast<size_t>(kMaxRank))
    return value.error(Code::kUnsupported,
                       strf("rank %zu; at most %d is read", value.size(), kMaxRank));
  Shape shape;
  for (JsonValue dim : value) {
    VV_ASSIGN(const int64_t n, dim.as_int());
    if (n < 0)
      return dim.error(Code::kCorruptData,
                       strf("wanted a dimension >= 0, got %lld", static_cast<long long>(n)));
    shape.dim[shape.rank++] = n;
  }
  return shape;
}

/// `data` is where the data section starts, `room` what it holds.
Status read_tensor(const JsonValue& info, uint64_t data, uint64_t room, TensorEntry* t) {
  VV_TRY(info.as_object().status());
  VV_ASSIGN(const JsonValue dtype, info.at("dtype"));
  VV_ASSIGN(const JsonValue shape, info.at("shape"));
  VV_ASSIGN(const JsonValue range, info.at("data_offsets"));
  if (info.size() != 3)
    return info.error(Code::kCorruptData,
                      "wanted dtype, shape and data_offsets, got other members as well");
  VV_ASSIGN(t->dtype, dtype_of(dtype));
  VV_ASSIGN(t->shape, shape_of(shape));
  VV_TRY(range.as_array().status());
  if (range.size() != 2)
    return range.error(Code::kCorruptData,
                       strf("wanted [begin, end], got %zu elements", range.size()));
  VV_ASSIGN(const int64_t begin, (*range.begin()).as_int());
  VV_ASSIGN(const int64_t end, (*++range.begin()).as_int());
  if (begin < 0 || end < begin || static_cast<uint64_t>(end) > room)
    return range.error(Code::kCorruptData,
                       strf("[%lld, %lld) is not inside the file's %llu bytes of data: truncated?",
                            static_cast<long long>(begin), static_cast<long long>(end),
                            static_cast<unsigned long long>(room)));
  const auto bytes = tensor_bytes(t->dtype, t->shape);
  t->offset = data + static_cast<uint64_t>(begin);
  t->bytes = static_cast<uint64_t>(end - begin);
  if (!bytes) return shape.error(Code::kCorruptData, to_string(t->shape) + " overflows");
  if (*bytes != t->bytes)
    return range.error(Code::kCorruptData,
                       strf("%llu bytes, but shape %s of %s takes %llu",
                            static_cast<unsigned long long>(t->bytes), to_string(t->shape).c_str(),
                            vivace::name(t->dtype), static_cast<unsigned long long>(*bytes)));
  return Status();
}

Status read_metadata(const JsonValue& pairs, Metadata* metadata) {
  VV_TRY(pairs.as_object().status());
  if (pairs.size() > kMaxMetaPairs)
    return pairs.error(Code::kLimitExceeded, strf("%zu pairs, at most %llu are read", pairs.size(),
                                                  static_cast<unsigned long long>(kMaxMetaPairs)));
  for (JsonValue v : pairs) {
    VV_ASSIGN(const std::string_view text, v.as_string());
    if (!is_good_name(v.key()))
      return v.error(Code::kCorruptData, "the key is empty, too long or not printable");
    metadata->add_string(std::string(v.key()), std::string(text));
  }
  return Status();
}

/// What the getters of Json call an absent member is, in a file of fixed form, a corrupt file.
Status as_corrupt(Status s) {
  if (s.code() != Code::kNotFound) return s;
  return Status(Code::kCorruptData, s.message());
}

}  // namespace

Result<ParsedFile> parse_safetensors(Bytes file, const std::string& name) {
  uint64_t header_bytes = 0;
  if (file.size() < 8)
    return Status(Code::kCorruptData, strf("%s: wanted 8 bytes of header length, the file has %zu",
                                           name.c_str(), file.size()));
  std::memcpy(&header_bytes, file.data(), 8);
  const uint64_t left = file.size() - 8;
  if (header_bytes > kMaxHeaderBytes)
    return Status(Code::kLimitExceeded,
                  strf("%s: header of %llu bytes, at most %llu are read", name.c_str(),
                       static_cast<unsigned long long>(header_bytes),
                       static_cast<unsigned long long>(kMaxHeaderBytes)));
  if (header_bytes > left)
    return Status(
        Code::kCorruptData,
        strf("%s: header of %llu bytes, the file has %llu left: truncated?", name.c_str(),
             static_cast<unsigned long long>(header_bytes), static_cast<unsigned long long>(left)));
  const std::string_view header(reinterpret_cast<const char*>(file.data()) + 8, header_bytes);
  if (!header.starts_with('{'))
    return Status(Code::kCorruptData, name + ": the header does not start with '{'");

  const uint64_t data = 8 + header_bytes;
  VV_ASSIGN(const Json json, Json::parse(header, name, {.bytes = kMaxHeaderBytes, .depth = 8}));
  const JsonValue root = json.root();
  if (root.size() > kMaxTensors)
    return root.error(Code::kLimitExceeded, strf("%zu tensors, at most %llu are read", root.size(),
                                                 static_cast<unsigned long long>(kMaxTensors)));
  ParsedFile out{{}, Metadata(name)};
  out.tensors.reserve(root.size());
  for (JsonValue member : root) {
    if (member.key() == "__metadata__") {
      VV_TRY(as_corrupt(read_metadata(member, &out.metadata)));
      continue;
    }
    if (!is_good_name(member.key()))
      return member.error(Code::kCorruptData,
                          "the tensor's name is empty, too long or not printable");
    TensorEntry t;
    t.name = member.key();
    VV_TRY(as_corrupt(read_tensor(member, data, file.size() - data, &t)));
    out.tensors.push_back(std::move(t));
  }
  VV_TRY(out.metadata.freeze());
  VV_TRY(check_layout(out.tensors, data, file.size(), true, name));
  return out;
}

Result<ShardIndex> parse_shard_index(Bytes file, const std::string& name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  VV_ASSIGN(const Json json, Json::parse(text, name, {.bytes = kMaxHeaderBytes, .depth = 8}));
  auto map = json.root().at("weight_map");
  if (map.ok()) map = map->as_object();
  if (!map.ok()) return as_corrupt(map.status());
  if (map->size() == 0 || map->size() > kMaxTensors)
    return map->error(Code::kLimitExceeded, strf("%zu tensors, 1 to %llu are read", map->size(),
                                                 static_cast<unsigned long long>(kMaxTensors)));
  ShardIndex out;
  for (JsonValue v : *map) {
    const auto shard = v.as_string();
    if (!shard.ok()) return as_corrupt(shard.status());
    if (!is_good_name(v.key()))
      return v.error(Code::kCorruptData, "the tensor's name is empty, too long or not printable");
    // A shard is a file beside the index, whatever the index says.
    const bool plain = is_good_name(*shard) && shard->find_first_of("/\\") == shard->npos &&
                       shard->find("..") == shard->npos;
    if (!plain || !shard->ends_with(".safetensors"))
      return v.error(Code::kCorruptData,
                     "wanted the plain name of a .safetensors file, got " + quote(*shard));
    out.shards.emplace_back(*shard);
    out.tensors.emplace_back(v.key(), 0);
  }
  std::vector<std::string> in_order = std::move(out.shards);
  out.shards = in_order;
  std::sort(out.shards.begin(), out.shards.end());
  out.shards.erase(std::unique(out.shards.begin(), out.shards.end()), out.shards.end());
  if (out.shards.size() > kMaxShards)
    return map->error(Code::kLimitExceeded,
                      strf("%zu shards, at most %zu are read", out.shards.size(), kMaxShards));
  for (size_t i = 0; i < in_order.size(); ++i)
    out.tensors[i].second = static_cast<uint32_t>(
        std::lower_bound(out.shards.begin(), out.shards.end(), in_order[i]) - out.shards.begin());
  return out;
}

}  // namespace vivace::engine
