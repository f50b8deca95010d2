#include <cmath>

#include "tests/engine/checkpoint_files.h"

namespace vivace::engine {
namespace {

using namespace testing;
constexpr uint32_t kU32 = 4, kF32 = 6, kBool = 7, kString = 8, kArray = 9,
                   kU64 = 10;                    // ids of value types
constexpr uint32_t kTypeF32 = 0, kTypeQ4_0 = 2;  // ids of element types

Result<ParsedFile> parse(const GgufFile& file) {
  static std::string bytes;  // the result's views point here
  bytes = file.bytes();
  return parse_gguf(as_bytes(bytes), "m.gguf");
}

/// Two tensors: f32 [2, 3] at 0 and q4_0 [2, 32] at 32.
GgufFile small() {
  GgufFile f;
  f.pairs = {gguf_pair("general.architecture", kString, gguf_string("llama")),
             gguf_pair("llama.block_count", kU32, le<uint32_t>(2))};
  f.tensors = {{"a.weight", {3, 2}, kTypeF32, 0}, {"b.weight", {32, 2}, kTypeQ4_0, 32}};
  f.data = std::string(32 + 36, 'd');
  return f;
}

TEST(Gguf, TensorsInRowMajorOrder) {
  for (uint32_t version : {2u, 3u}) {
    GgufFile f = small();
    f.version = version;
    const auto r = parse(f);
    ASSERT_TRUE(r.ok()) << r.status().to_string();
    ASSERT_EQ(r->tensors.size(), 2u);
    const TensorEntry &a = r->tensors[0], &b = r->tensors[1];
    EXPECT_EQ(a.name, "a.weight");
    EXPECT_EQ(a.dtype, DType::f32);
    EXPECT_EQ(a.shape, Shape(2, 3));
    EXPECT_EQ(a.bytes, 24u);
    EXPECT_EQ(a.offset % 32, 0u);
    EXPECT_EQ(b.dtype, DType::q4_0);
    EXPECT_EQ(b.shape, Shape(2, 32));
    EXPECT_EQ(b.bytes, 36u);
    EXPECT_EQ(b.offset, a.offset + 32);
  }
}

TEST(Gguf, EveryMetadataType) {
  GgufFile f;
  f.pairs = {gguf_pair("u8", 0, "\xfe"),
             gguf_pair("i8", 1, "\xfe"),
             gguf_pair("u16", 2, le<uint16_t>(65535)),
             gguf_pair("i16", 3, le<int16_t>(-3)),
             gguf_pair("u32", 4, le<uint32_t>(4000000000u)),
             gguf_pair("i32", 5, le<int32_t>(-5)),
             gguf_pair("f32", 6, le(0.5f)),
             gguf_pair("bool", 7, "\1"),
             gguf_pair("text", 8, gguf_string("héllo")),
             gguf_pair("u64", 10, le<uint64_t>(UINT64_MAX)),
             gguf_pair("i64", 11, le<int64_t>(-11)),
             gguf_pair("f64", 12, le(1e300)),
             gguf_pair("texts", kArray,
                       le(kString) + le<uint64_t>(3) + gguf_string("a") + gguf_string("") +
                           gguf_string("\xff")),
             gguf_pair("i32s", kArray,
                       le<uint32_t>(5) + le<uint64_t>(2) + le<int32_t>(1) + le<int32_t>(-1)),
             gguf_pair("f32s", kArray, le(kF32) + le<uint64_t>(1) + le(-2.5f)),
             gguf_pair("none", kArray, le(kU64) + le<uint64_t>(0))};
  const auto r = parse(f);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  const Metadata& m = r->metadata;
  EXPECT_EQ(m.entries().size(), 16u);
  EXPECT_EQ(*m.get_u64("u8"), 254u);
  EXPECT_EQ(*m.get_i64("i8"), -2);
  EXPECT_EQ(*m.get_u64("u16"), 65535u);
  EXPECT_EQ(*m.get_i64("i16"), -3);
  EXPECT_EQ(*m.get_u64("u32"), 4000000000u);
  EXPECT_EQ(*m.get_i64("i32"), -5);
  EXPECT_EQ(*m.get_f64("f32"), 0.5);
  EXPECT_TRUE(*m.get_bool("bool"));
  EXPECT_EQ(*m.get_string("text"), "héllo");
  EXPECT_EQ(*m.get_u64("u64"), UINT64_MAX);
  EXPECT_EQ(*m.get_i64("i64"), -11);
  EXPECT_EQ(*m.get_f64("f64"), 1e300);
  EXPECT_EQ(*m.get_f64("u32"), 4e9);
  const auto texts = *m.get_strings("texts");
  EXPECT_EQ(std::vector<std::string>(texts.begin(), texts.end()),
            (std::vector<std::string>{"a", "", "\xff"}));
  EXPECT_EQ(m.get_i32s("i32s")->to_vector(), (std::vector<int32_t>{1, -1}));
  EXPECT_EQ(*m.get_i64s("i32s"), (std::vector<int64_t>{1, -1}));
  EXPECT_EQ(*m.get_i64s("i16"), (std::vector<int64_t>{-3}));
  EXPECT_EQ((*m.get_f32s("f32s"))[0], -2.5f);
  EXPECT_TRUE(m.get_i64s("none")->empty());
  EXPECT_EQ(m.find("texts")->type_name(), "array of string [3]");

  expect_error(m.get_u64("absent"), Code::kNotFound, {"m.gguf: metadata has no key \"absent\""});
  expect_error(m.get_u64("text"), Code::kCorruptData,
               {"m.gguf: metadata key \"text\": expected an integer >= 0, got string"});
  expect_error(m.get_u64("i16"), Code::kCorruptData, {"got -3"});
  expect_error(m.get_i64("u64"), Code::kCorruptData, {"below 2^63, got 18446744073709551615"});
  expect_error(m.get_u64("i32s"), Code::kCorruptData, {"got array of i32 [2]"});
  expect_error(m.get_u64("bool"), Code::kCorruptData, {"got bool"});
  expect_error(m.get_bool("u8"), Code::kCorruptData, {"expected bool, got u8"});
  expect_error(m.get_string("texts"), Code::kCorruptData,
               {"expected string, got array of string [3]"});
  expect_error(m.get_f32s("i32s"), Code::kCorruptData, {"expected array of f32"});
  expect_error(m.get_strings("text"), Code::kCorruptData,
               {"expected array of string, got string"});
}

TEST(Gguf, EveryElementType) {
  const struct {
    uint32_t id;
    DType dtype;
  } types[] = {{0, DType::f32},   {1, DType::f16},   {2, DType::q4_0}, {3, DType::q4_1},
               {6, DType::q5_0},  {7, DType::q5_1},  {8, DType::q8_0}, {12, DType::q4_k},
               {13, DType::q5_k}, {14, DType::q6_k}, {24, DType::i8},  {25, DType::i16},
               {26, DType::i32},  {27, DType::i64},  {28, DType::f64}, {30, DType::bf16}};
  for (const auto& t : types) {
    GgufFile f;
    f.tensors = {{"w", {256}, t.id, 0}};
    f.data = std::string(static_cast<size_t>(row_bytes(t.dtype, 256)), 'x');
    const auto r = parse(f);
    ASSERT_TRUE(r.ok()) << r.status().to_string();
    EXPECT_EQ(r->tensors[0].dtype, t.dtype);
    EXPECT_EQ(r->tensors[0].bytes, f.data.size());
    f.data.pop_back();
    expect_error(parse(f), Code::kCorruptData, {"tensor \"w\"", "truncated?"});
  }
  GgufFile f = small();
  f.tensors[0].type = 16;  // IQ2_XXS
  expect_error(parse(f), Code::kUnsupported, {"m.gguf", "tensor \"a.weight\"", "ggml type id 16"});
}

TEST(Gguf, EveryPrefixIsAnError) {
  const std::string whole = small().bytes();
  for (size_t n = 0; n < whole.size(); ++n) {
    // An exact-sized copy, so that a sanitizer sees one byte too many.
    const std::vector<uint8_t> part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    expect_error(parse_gguf(part, "m.gguf"), Code::kCorruptData, {"m.gguf"});
  }
}

TEST(Gguf, BadHeader) {
  GgufFile f = small();
  f.magic = "GGML";
  expect_error(parse(f), Code::kCorruptData, {"magic", "wanted \"GGUF\", got \"GGML\""});
  f = small();
  f.version = 1;
  expect_error(parse(f), Code::kUnsupported, {"GGUF version 1", "convert"});
  f.version = 0x03000000;
  expect_error(parse(f), Code::kUnsupported, {"big-endian"});
  for (int64_t more : {int64_t{1} << 32, INT64_MAX, int64_t{-3}}) {
    f = small();
    f.more_pairs = more;
    expect_error(parse(f), Code::kLimitExceeded, {"metadata count"});
    f = small();
    f.more_tensors = more;
    expect_error(parse(f), Code::kLimitExceeded, {"tensor count"});
  }
  f = small();
  f.more_tensors = 100;
  expect_error(parse(f), Code::kCorruptData, {"tensor count", "102 do not fit"});
}

TEST(Gguf, BadMetadata) {
  const struct {
    std::string pair;
    Code code;
    const char* part;
  } cases[] = {
      {gguf_pair("llama.block_count", kU32, le<uint32_t>(3)), Code::kCorruptData,
       "duplicate metadata key \"llama.block_count\""},
      {gguf_pair("k", 13, ""), Code::kCorruptData, "type id below 13, got 13"},
      {gguf_pair("k", 0xffffffffu, ""), Code::kCorruptData, "type id below 13"},
      {gguf_pair("k", kBool, "\2"), Code::kCorruptData, "bool of 0 or 1, got 2"},
      {gguf_pair("k", kArray, le(kBool) + le<uint64_t>(2) + "\1\xff"), Code::kCorruptData,
       "bool of 0 or 1, got 255"},
      {gguf_pair("k", kString, gguf_string("\xff")), Code::kCorruptData, "not valid UTF-8"},
      {gguf_pair("k", kString, le<uint64_t>(UINT64_MAX)), Code::kCorruptData,
       "wanted 18446744073709551615 bytes"},
      {gguf_pair("", kU32, le<uint32_t>(0)), Code::kCorruptData, "printable UTF-8"},
      {gguf_pair("a\nb", kU32, le<uint32_t>(0)), Code::kCorruptData, "a\\x0ab"},
      {gguf_pair(std::string(1025, 'k'), kU32, le<uint32_t>(0)), Code::kCorruptData,
       "got 1025 bytes"},
      {gguf_pair("k", kArray, le(kArray) + le<uint64_t>(0)), Code::kUnsupported,
       "arrays of arrays"},
      {gguf_pair("k", kArray, le(kU64) + le<uint64_t>(UINT64_MAX / 8 + 2)), Code::kCorruptData,
       "array length"},
      {gguf_pair("k", kArray, le(kString) + le<uint64_t>(uint64_t{1} << 40)), Code::kCorruptData,
       "array length"},
      {gguf_pair("general.alignment", kU32, le<uint32_t>(0)), Code::kCorruptData,
       "general.alignment: wanted a power of two"},
      {gguf_pair("general.alignment", kU32, le<uint32_t>(48)), Code::kCorruptData, "got 48"},
      {gguf_pair("general.alignment", kU64, le<uint64_t>(32)), Code::kCorruptData,
       "wanted u32, got u64"},
      {gguf_pair("split.count", kU32, le<uint32_t>(2)), Code::kUnsupported, "one of 2 parts"},
  };
  for (const auto& c : cases) {
    GgufFile f = small();
    f.pairs.push_back(c.pair);
    expect_error(parse(f), c.code, {"m.gguf", c.part});
  }
}

TEST(Gguf, AlignmentPair) {
  GgufFile f;
  f.alignment = 128;
  f.pairs = {gguf_pair("general.alignment", kU32, le<uint32_t>(128))};
  f.tensors = {{"a", {4}, kTypeF32, 0}, {"b", {4}, kTypeF32, 128}};
  f.data = std::string(144, 'x');
  ASSERT_TRUE(parse(f).ok());
  EXPECT_EQ(parse(f)->tensors[1].offset % 128, 0u);
  f.tensors[1].offset = 32;
  expect_error(parse(f), Code::kCorruptData,
               {"tensor \"b\"", "offset 32 is no multiple of the alignment 128"});
}

TEST(Gguf, BadTensors) {
  const auto with = [](void (*change)(GgufFile*)) {
    GgufFile f = small();
    change(&f);
    return parse(f);
  };
  expect_error(with([](GgufFile* f) { f->tensors[1].offset = 0; }), Code::kCorruptData,
               {"m.gguf", "overlap"});
  expect_error(with([](GgufFile* f) { f->tensors[1].offset = 31; }), Code::kCorruptData,
               {"offset 31 is no multiple"});
  expect_error(with([](GgufFile* f) { f->tensors[1].offset = 64; }), Code::kCorruptData,
               {"\"b.weight\"", "wanted 36 bytes at 64", "holds 68"});
  expect_error(with([](GgufFile* f) { f->tensors[1].offset = UINT64_MAX - 31; }),
               Code::kCorruptData, {"truncated?"});
  expect_error(with([](GgufFile* f) {
                 f->tensors[1].dims = {48, 2};
               }),
               Code::kCorruptData, {"\"b.weight\"", "[2, 48]", "blocks of 32"});
  expect_error(with([](GgufFile* f) {
                 f->tensors[0].dims = {0, 2};
               }),
               Code::kCorruptData, {"\"a.weight\"", "dimension", "got 0"});
  expect_error(with([](GgufFile* f) { f->tensors[0].dims = {uint64_t{1} << 63}; }),
               Code::kCorruptData, {"dimension"});
  expect_error(with([](GgufFile* f) {
                 f->tensors[0].dims = {uint64_t{1} << 32, uint64_t{1} << 32};
               }),
               Code::kCorruptData, {"overflows"});
  expect_error(with([](GgufFile* f) { f->tensors[0].dims = {uint64_t{1} << 62}; }),
               Code::kCorruptData, {"overflows"});
  expect_error(with([](GgufFile* f) {
                 f->tensors[0].dims = {1, 1, 1, 1, 1};
               }),
               Code::kCorruptData, {"rank", "at most 4, got 5"});
  expect_error(with([](GgufFile* f) { f->tensors[0].name.clear(); }), Code::kCorruptData,
               {"tensor 0", "name"});
  expect_error(with([](GgufFile* f) { f->data.resize(40); }), Code::kCorruptData,
               {"\"b.weight\"", "truncated?"});
}

TEST(Gguf, FlippedBytesNeverBreakIt) {
  const std::string whole = small().bytes();
  for (size_t i = 0; i < whole.size(); ++i) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string changed = whole;
      changed[i] = static_cast<char>(changed[i] ^ (1 << bit));
      const auto r = parse_gguf(as_bytes(changed), "m.gguf");
      if (!r.ok()) continue;
      for (const TensorEntry& t : r->tensors)
        ASSERT_LE(t.offset + t.bytes, changed.size()) << i << "." << bit;
    }
  }
}

}  // namespace
}  // namespace vivace::engine
