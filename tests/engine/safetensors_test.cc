#include "tests/engine/checkpoint_files.h"

namespace vivace::engine {
namespace {

using namespace testing;

Result<ParsedFile> parse(const std::string& header, size_t data_bytes) {
  return parse_safetensors(as_bytes(safetensors_file(header, data_bytes)), "m.safetensors");
}

TEST(Safetensors, TensorsAndMetadata) {
  const auto r = parse(
      R"({"__metadata__":{"format":"pt","n\u0041me":"é"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[16,22]},)"
      R"("a":{"data_offsets":[0,16],"shape":[2,2],"dtype":"F32"},)"
      R"("s":{"dtype":"U8","shape":[],"data_offsets":[22,23]}}   )",
      23);
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  ASSERT_EQ(r->tensors.size(), 3u);
  EXPECT_EQ(r->tensors[0].name, "b");
  EXPECT_EQ(r->tensors[0].dtype, DType::bf16);
  EXPECT_EQ(r->tensors[1].shape, Shape(2, 2));
  EXPECT_EQ(r->tensors[0].offset, r->tensors[1].offset + 16);
  EXPECT_EQ(r->tensors[2].shape.rank, 0);
  EXPECT_EQ(r->tensors[2].bytes, 1u);
  EXPECT_EQ(*r->metadata.get_string("format"), "pt");
  EXPECT_EQ(*r->metadata.get_string("nAme"), "é");
}

TEST(Safetensors, EveryElementType) {
  const struct {
    const char* name;
    DType dtype;
  } types[] = {{"F64", DType::f64},   {"F32", DType::f32},      {"F16", DType::f16},
               {"BF16", DType::bf16}, {"F8_E4M3", DType::e4m3}, {"F8_E5M2", DType::e5m2},
               {"I64", DType::i64},   {"I32", DType::i32},      {"I16", DType::i16},
               {"I8", DType::i8},     {"U8", DType::u8},        {"BOOL", DType::boolean}};
  for (const auto& t : types) {
    const size_t n = static_cast<size_t>(row_bytes(t.dtype, 2));
    const auto r =
        parse(strf(R"({"w":{"dtype":"%s","shape":[2],"data_offsets":[0,%zu]}})", t.name, n), n);
    ASSERT_TRUE(r.ok()) << r.status().to_string();
    EXPECT_EQ(r->tensors[0].dtype, t.dtype);
  }
  for (const char* type : {"F8_E8M0", "U16", "C64", "f32", ""})
    expect_error(parse(strf(R"({"w":{"dtype":"%s","shape":[2],"data_offsets":[0,4]}})", type), 4),
                 Code::kUnsupported, {"m.safetensors: w.dtype", type});
}

TEST(Safetensors, EmptyTensors) {
  EXPECT_TRUE(parse("{}", 0).ok());
  EXPECT_TRUE(
      parse(
          R"({"a":{"dtype":"F32","shape":[0,9],"data_offsets":[0,0]},)"
          R"("b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
          R"("c":{"dtype":"F32","shape":[0],"data_offsets":[4,4]}})",
          4)
          .ok());
  // An empty tensor inside another one.
  expect_error(
      parse(
          R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},)"
          R"("b":{"dtype":"F32","shape":[0],"data_offsets":[2,2]}})",
          4),
      Code::kCorruptData, {"tensor \"b\"", "overlap"});
}

TEST(Safetensors, EveryPrefixIsAnError) {
  const std::string whole =
      safetensors_file(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8);
  for (size_t n = 0; n < whole.size(); ++n) {
    const std::vector<uint8_t> part(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(n));
    expect_error(parse_safetensors(part, "m.safetensors"), Code::kCorruptData, {"m.safetensors"});
  }
  EXPECT_TRUE(parse_safetensors(as_bytes(whole), "m.safetensors").ok());
  expect_error(parse_safetensors(as_bytes(whole + "x"), "m.safetensors"), Code::kCorruptData,
               {"tensors end at byte", "the file at"});
}

TEST(Safetensors, BadHeaderLength) {
  for (uint64_t n : {uint64_t{100'000'001}, uint64_t{1} << 63, UINT64_MAX})
    expect_error(parse_safetensors(as_bytes(le(n) + "{}"), "m"), Code::kLimitExceeded,
                 {"at most 100000000"});
  expect_error(parse_safetensors(as_bytes(le<uint64_t>(100'000'000) + "{}"), "m"),
               Code::kCorruptData, {"truncated?"});
  expect_error(parse_safetensors(as_bytes(le<uint64_t>(0)), "m"), Code::kCorruptData,
               {"does not start with '{'"});
  expect_error(parse(" {}", 0), Code::kCorruptData, {"does not start with '{'"});
  expect_error(parse("{} x", 0), Code::kCorruptData, {"expected the end"});
}

TEST(Safetensors, BadHeaders) {
  const struct {
    const char* header;
    size_t data;
    Code code;
    const char* part;
  } cases[] = {
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}})",
       6, Code::kCorruptData, "tensors overlap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
       4, Code::kCorruptData, "tensors overlap"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}})",
       6, Code::kCorruptData, "bytes without a tensor"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[1,5]}})", 5, Code::kCorruptData,
       "bytes without a tensor"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 5, Code::kCorruptData,
       "tensors end at byte"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"a":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})",
       8, Code::kCorruptData, "duplicate key \"a\""},
      {R"({"a":{"dtype":"U8","dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4,
       Code::kCorruptData, "duplicate key \"dtype\""},
      {R"({"a":{"dtype":"F32","shape":[4],"data_offsets":[0,4]}})", 4, Code::kCorruptData,
       "a.data_offsets: 4 bytes, but shape [4] of f32 takes 16"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[4,0]}})", 4, Code::kCorruptData, "[4, 0)"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[-4,0]}})", 4, Code::kCorruptData,
       "[-4, 0)"},
      {R"({"a":{"dtype":"U8","shape":[9],"data_offsets":[0,9]}})", 4, Code::kCorruptData,
       "the file's 4 bytes"},
      {R"({"a":{"dtype":"U8","shape":[-4],"data_offsets":[0,4]}})", 4, Code::kCorruptData,
       "a.shape[0]: wanted a dimension >= 0, got -4"},
      {R"({"a":{"dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0,
       Code::kCorruptData, "overflows"},
      {R"({"a":{"dtype":"F64","shape":[1152921504606846976],"data_offsets":[0,0]}})", 0,
       Code::kCorruptData, "takes 9223372036854775808"},
      {R"({"a":{"dtype":"F64","shape":[2305843009213693952],"data_offsets":[0,0]}})", 0,
       Code::kCorruptData, "overflows"},
      {R"({"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,0]}})", 0,
       Code::kCorruptData, "expected integer, got number"},
      {R"({"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}})", 1, Code::kCorruptData,
       "expected integer, got number"},
      {R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1],"data_offsets":[0,1]}})", 1,
       Code::kUnsupported, "rank 7; at most 6"},
      {R"({"a":{"dtype":"U8","shape":4,"data_offsets":[0,4]}})", 4, Code::kCorruptData,
       "a.shape: expected array"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0]}})", 4, Code::kCorruptData,
       "wanted [begin, end], got 1"},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4,8]}})", 4, Code::kCorruptData,
       "wanted [begin, end], got 3"},
      {R"({"a":{"dtype":"U8","shape":[4]}})", 4, Code::kCorruptData, "no member \"data_offsets\""},
      {R"({"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4],"strides":[1]}})", 4,
       Code::kCorruptData, "other members"},
      {R"({"a":{"dtype":8,"shape":[4],"data_offsets":[0,4]}})", 4, Code::kCorruptData,
       "a.dtype: expected string"},
      {R"({"a":[]})", 0, Code::kCorruptData, "a: expected object"},
      {R"({"":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, Code::kCorruptData,
       "name is empty"},
      {R"({"a\n":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})", 4, Code::kCorruptData,
       "not printable"},
      {R"({"__metadata__":{"k":1}})", 0, Code::kCorruptData, "__metadata__.k: expected string"},
      {R"({"__metadata__":[]})", 0, Code::kCorruptData, "__metadata__: expected object"},
      {R"({"a":[[[[[[[[[]]]]]]]]]})", 0, Code::kLimitExceeded, "nested deeper than 8"},
      {"{\"\xff\":1}", 0, Code::kCorruptData, "not valid UTF-8"},
  };
  for (const auto& c : cases)
    expect_error(parse(c.header, c.data), c.code, {"m.safetensors", c.part});
}

TEST(Safetensors, ShardIndex) {
  const auto parse_index = [](const std::string& s) {
    return parse_shard_index(as_bytes(s), "i.json");
  };
  const auto r = parse_index(
      R"({"metadata":{"total_size":1},"weight_map":)"
      R"({"x":"m-2.safetensors","y":"m-1.safetensors","z":"m-2.safetensors"}})");
  ASSERT_TRUE(r.ok()) << r.status().to_string();
  EXPECT_EQ(r->shards, (std::vector<std::string>{"m-1.safetensors", "m-2.safetensors"}));
  EXPECT_EQ(r->tensors,
            (std::vector<std::pair<std::string, uint32_t>>{{"x", 1}, {"y", 0}, {"z", 1}}));
  for (const char* shard :
       {"../m.safetensors", "/etc/m.safetensors", "a/m.safetensors", "a\\\\m.safetensors",
        "m..safetensors", "", "m.bin", "m\\u0000.safetensors"})
    expect_error(parse_index(strf(R"({"weight_map":{"x":"%s"}})", shard)), Code::kCorruptData,
                 {"i.json: weight_map.x: wanted the plain name"});
  expect_error(parse_index("{}"), Code::kCorruptData, {"no member \"weight_map\""});
  expect_error(parse_index(R"({"weight_map":[]})"), Code::kCorruptData,
               {"weight_map: expected object"});
  expect_error(parse_index(R"({"weight_map":{}})"), Code::kLimitExceeded, {"0 tensors"});
  expect_error(parse_index(R"({"weight_map":{"x":1}})"), Code::kCorruptData,
               {"weight_map.x: expected string"});
  expect_error(parse_index(R"({"weight_map":{"x":"a.safetensors","x":"b.safetensors"}})"),
               Code::kCorruptData, {"duplicate key"});
}

}  // namespace
}  // namespace vivace::engine
