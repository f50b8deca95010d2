// GGUF versions 2 and 3, little endian: magic, counts, key-value pairs, tensor infos, aligned data.
#include <bit>
#include <cstring>

#include "vivace/base/check.h"
#include "vivace/engine/checkpoint/parse.h"

namespace vivace::engine {
namespace {

static_assert(std::endian::native == std::endian::little,
              "the readers map little-endian files as they are");

constexpr uint64_t kMaxAlignment = 1u << 20;
constexpr int kMaxGgufRank = 4;
// What the shortest pair (key of one byte, u8) and tensor info (name of one byte, rank 0) take in a
// file.
constexpr uint64_t kMinPairBytes = 8 + 1 + 4 + 1, kMinTensorBytes = 8 + 1 + 4 + 4 + 8;

struct GgmlType {
  uint32_t id;
  DType dtype;
};
constexpr GgmlType kGgmlTypes[] = {
    {0, DType::f32},   {1, DType::f16},   {2, DType::q4_0}, {3, DType::q4_1},
    {6, DType::q5_0},  {7, DType::q5_1},  {8, DType::q8_0}, {12, DType::q4_k},
    {13, DType::q5_k}, {14, DType::q6_k}, {24, DType::i8},  {25, DType::i16},
    {26, DType::i32},  {27, DType::i64},  {28, DType::f64}, {30, DType::bf16}};

const DType* dtype_of(uint32_t id) {
  for (const GgmlType& t : kGgmlTypes)
    if (t.id == id) return &t.dtype;
  return nullptr;
}

/// Bytes of one element; 0 for strings and arrays, which have no fixed size.
uint64_t size_of(MetaType t) {
  switch (t) {
    case MetaType::u8:
    case MetaType::i8:
    case MetaType::boolean:
      return 1;
    case MetaType::u16:
    case MetaType::i16:
      return 2;
    case MetaType::u32:
    case MetaType::i32:
    case MetaType::f32:
      return 4;
    case MetaType::u64:
    case MetaType::i64:
    case MetaType::f64:
      return 8;
    case MetaType::string:
    case MetaType::array:
      break;
  }
  return 0;
}

class Reader {
 public:
  Reader(Bytes file, const std::string& name)
      : file_(file), name_(name), out_{{}, Metadata(name)} {}

  Result<ParsedFile> run() {
    uint64_t tensors = 0, pairs = 0;
    VV_TRY(header(&tensors, &pairs));
    for (uint64_t i = 0; i < pairs; ++i) VV_TRY(pair(i));
    VV_TRY(out_.metadata.freeze());
    VV_TRY(settings());
    out_.tensors.reserve(tensors);
    for (uint64_t i = 0; i < tensors; ++i) VV_TRY(tensor_info(i));
    VV_TRY(place_data());
    return std::move(out_);
  }

 private:
  uint64_t left() const { return file_.size() - at_; }
  std::string where(const std::string& field) const {
    return strf("%s: byte %zu: %s%s", name_.c_str(), at_, item_.c_str(), field.c_str());
  }
  Status corrupt(const std::string& field, const std::string& what) const {
    return Status(Code::kCorruptData, where(field) + ": " + what);
  }
  Status truncated(const std::string& field, uint64_t wanted) const {
    return corrupt(field, strf("wanted %llu bytes, %llu are left in the file",
                               static_cast<unsigned long long>(wanted),
                               static_cast<unsigned long long>(left())));
  }

  template <class T>
  Status read(T* value, const char* field) {
    if (left() < sizeof(T)) return truncated(field, sizeof(T));
    std::memcpy(value, file_.data() + at_, sizeof(T));
    at_ += sizeof(T);
    return Status();
  }
  /// `bytes` bytes of the file as a view.
  Status take(uint64_t bytes, std::string_view* view, const char* field) {
    if (left() < bytes) return truncated(field, bytes);
    *view = {reinterpret_cast<const char*>(file_.data()) + at_, bytes};
    at_ += bytes;
    return Status();
  }
  Status string(std::string_view* view, const char* field) {
    uint64_t bytes = 0;
    VV_TRY(read(&bytes, field));
    return take(bytes, view, field);
  }
  Status good_name(std::string* value, const char* field) {
    std::string_view view;
    VV_TRY(string(&view, field));
    if (!is_good_name(view))
      return corrupt(field, strf("wanted 1 to %llu bytes of printable UTF-8, got %zu bytes: ",
                                 static_cast<unsigned long long>(kMaxNameBytes), view.size()) +
                                quote(view));
    *value = view;
    return Status();
  }
  /// A count can be no larger than what the rest of the file could hold.
  Status check_count(const char* field, uint64_t count, uint64_t cap, uint64_t min_bytes) const {
    if (count > cap)
      return Status(Code::kLimitExceeded,
                    where(field) + strf(": %llu, at most %llu are read",
                                        static_cast<unsigned long long>(count),
                                        static_cast<unsigned long long>(cap)));
    if (count > left() / min_bytes)
      return corrupt(field, strf("%llu do not fit in the %llu bytes left",
                                 static_cast<unsigned long long>(count),
                                 static_cast<unsigned long long>(left())));
    return Status();
  }

  Status header(uint64_t* tensors, uint64_t* pairs) {
    std::string_view magic;
    uint32_t version = 0;
    VV_TRY(take(4, &magic, "magic"));
    if (magic != "GGUF") return corrupt("magic", "wanted \"GGUF\", got " + quote(magic));
    VV_TRY(read(&version, "version"));
    if (__builtin_bswap32(version) == 2 || __builtin_bswap32(version) == 3)
      return Status(
          Code::kUnsupported,
          name_ + ": big-endian GGUF; convert the model again for little-endian machines");
    if (version != 2 && version != 3)
      return Status(Code::kUnsupported,
                    strf("%s: GGUF version %u; 2 and 3 are read, so convert the model again",
                         name_.c_str(), version));
    VV_TRY(read(tensors, "tensor count"));
    VV_TRY(read(pairs, "metadata count"));
    VV_TRY(check_count("metadata count", *pairs, kMaxMetaPairs, kMinPairBytes));
    return check_count("tensor count", *tensors, kMaxTensors, kMinTensorBytes);
  }

  Status type_id(MetaType* type, const char* field) {
    uint32_t id = 0;
    VV_TRY(read(&id, field));
    if (id >= kMetaTypeCount)
      return corrupt(field, strf("wanted a type id below %d, got %u", kMetaTypeCount, id));
    *type = static_cast<MetaType>(id);
    return Status();
  }

  Status pair(uint64_t index) {
    MetaEntry entry;
    item_ = strf("metadata %llu: ", static_cast<unsigned long long>(index));
    VV_TRY(good_name(&entry.key, "key"));
    item_ = "metadata " + quote(entry.key) + ": ";
    VV_TRY(type_id(&entry.type, "value type"));
    VV_TRY(entry.type == MetaType::array ? array(&entry) : scalar(&entry));
    out_.metadata.add(std::move(entry));
    return Status();
  }

  Status scalar(MetaEntry* entry) {
    if (entry->type != MetaType::string) {
      VV_TRY(take(size_of(entry->type), &entry->raw, "value"));
      return check_booleans(*entry);
    }
    VV_TRY(string(&entry->raw, "string"));
    return is_utf8(entry->raw) ? Status() : corrupt("string", "not valid UTF-8");
  }

  Status array(MetaEntry* entry) {
    uint64_t count = 0;
    entry->is_array = true;
    VV_TRY(type_id(&entry->type, "element type"));
    if (entry->type == MetaType::array)
      return Status(Code::kUnsupported, where("element type") + ": arrays of arrays are not read");
    VV_TRY(read(&count, "array length"));
    const uint64_t element = size_of(entry->type);
    VV_TRY(check_count("array length", count, UINT64_MAX, element ? element : 8));
    if (element) {
      VV_TRY(take(count * element, &entry->raw, "array"));
      return check_booleans(*entry);
    }
    entry->strings.resize(count);
    for (std::string_view& s : entry->strings) VV_TRY(string(&s, "array string"));
    return Status();
  }

  Status check_booleans(const MetaEntry& entry) const {
    if (entry.type != MetaType::boolean) return Status();
    for (unsigned char c : entry.raw)
      if (c > 1)
        return corrupt("value", strf("wanted a bool of 0 or 1, got %u", static_cast<unsigned>(c)));
    return Status();
  }

  /// The two pairs that change how the rest is read.
  Status settings() {
    if (const MetaEntry* e = out_.metadata.find("general.alignment")) {
      if (e->type != MetaType::u32 || e->is_array)
        return corrupt("general.alignment", "wanted u32, got " + e->type_name());
      alignment_ = static_cast<uint64_t>(e->integer());
      if (alignment_ < 8 || alignment_ > kMaxAlignment || !std::has_single_bit(alignment_))
        return corrupt("general.alignment", strf("wanted a power of two from 8 to %llu, got %llu",
                                                 static_cast<unsigned long long>(kMaxAlignment),
                                                 static_cast<unsigned long long>(alignment_)));
    }
    if (out_.metadata.has("split.count")) {
      VV_ASSIGN(const uint64_t parts, out_.metadata.get_u64("split.count"));
      if (parts > 1)
        return Status(
            Code::kUnsupported,
            strf(
                "%s: one of %llu parts of a split GGUF; join them first (llama-gguf-split --merge)",
                name_.c_str(), static_cast<unsigned long long>(parts)));
    }
    return Status();
  }

  Status tensor_info(uint64_t index) {
    TensorEntry t;
    item_ = strf("tensor %llu: ", static_cast<unsigned long long>(index));
    VV_TRY(good_name(&t.name, "name"));
    item_ = "tensor " + quote(t.name) + ": ";
    VV_TRY(tensor_fields(&t));
    out_.tensors.push_back(std::move(t));
    return Status();
  }

  Status tensor_fields(TensorEntry* t) {
    uint32_t rank = 0, type = 0;
    VV_TRY(read(&rank, "rank"));
    if (rank > kMaxGgufRank)
      return corrupt("rank", strf("wanted at most %d, got %u", kMaxGgufRank, rank));
    t->shape.rank = static_cast<int>(rank);
    for (uint32_t i = 0; i < rank; ++i) {
      uint64_t dim = 0;
      VV_TRY(read(&dim, "dimension"));
      if (dim == 0 || dim > static_cast<uint64_t>(INT64_MAX))
        return corrupt("dimension", strf("wanted 1 to 2^63 - 1, got %llu",
                                         static_cast<unsigned long long>(dim)));
      t->shape.dim[rank - 1 - i] = static_cast<int64_t>(dim);  // the file starts with the innermost
    }
    VV_TRY(read(&type, "element type"));
    const DType* dtype = dtype_of(type);
    if (!dtype)
      return Status(Code::kUnsupported,
                    where("element type") +
                        strf(": ggml type id %u is not read; quantize the model to Q4_0, Q4_1, "
                             "Q5_0, Q5_1, Q8_0, Q4_K, Q5_K or Q6_K, or store F32, F16 or BF16",
                             type));
    t->dtype = *dtype;
    VV_TRY(read(&t->offset, "offset"));
    const auto bytes = tensor_bytes(t->dtype, t->shape);
    if (!bytes)
      return corrupt("shape", to_string(t->shape) + " of " + vivace::name(t->dtype) +
                                  strf(" overflows or is no whole number of blocks of %d",
                                       info(t->dtype).block));
    t->bytes = *bytes;
    return Status();
  }

  /// Offsets count from the first aligned byte after the tensor infos.
  Status place_data() {
    if (out_.tensors.empty()) return Status();
    const uint64_t start = (at_ + alignment_ - 1) & ~(alignment_ - 1);
    const uint64_t room = start <= file_.size() ? file_.size() - start : 0;
    for (TensorEntry& t : out_.tensors) {
      if (t.offset % alignment_ != 0)
        return Status(
            Code::kCorruptData,
            strf("%s: tensor %s: offset %llu is no multiple of the alignment %llu", name_.c_str(),
                 quote(t.name).c_str(), static_cast<unsigned long long>(t.offset),
                 static_cast<unsigned long long>(alignment_)));
      if (t.offset > room || t.bytes > room - t.offset)
        return Status(
            Code::kCorruptData,
            strf("%s: tensor %s: wanted %llu bytes at %llu of the data, the file holds %llu: "
                 "truncated?",
                 name_.c_str(), quote(t.name).c_str(), static_cast<unsigned long long>(t.bytes),
                 static_cast<unsigned long long>(t.offset), static_cast<unsigned long long>(room)));
      t.offset += start;
    }
    return check_layout(out_.tensors, start, file_.size(), false, name_);
  }

  const Bytes file_;
  const std::string& name_;
  size_t at_ = 0;
  std::string item_;  // the pair or tensor being read, for messages
  uint64_t alignment_ = 32;
  ParsedFile out_;
};

}  // namespace

Result<ParsedFile> parse_gguf(Bytes file, const std::string& name) {
  return Reader(file, name).run();
}

}  // namespace vivace::engine
