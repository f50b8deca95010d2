#include "vivace/engine/checkpoint/json.h"

#include <gtest/gtest.h>

#include <cmath>

#include "tests/engine/checkpoint_files.h"

namespace vivace::engine {
namespace {

using testing::expect_error;

Json good(std::string_view text) {
  auto r = Json::parse(text, "config.json");
  EXPECT_TRUE(r.ok()) << r.status().to_string() << " in " << text;
  if (!r.ok()) return std::move(Json::parse("null", "config.json")).value();
  return std::move(r).value();
}

TEST(Json, EveryKindOfValue) {
  const Json json = good(
      R"( {"n": null, "t": true, "f": false, "i": -12, "d": 1.5e-3, "s": "x", "a": [1, [], {}], "o": {"k": 2}} )");
  const JsonValue v = json.root();
  EXPECT_EQ(v.size(), 8u);
  EXPECT_TRUE(v.find("n")->is_null());
  EXPECT_TRUE(*v.get_bool("t"));
  EXPECT_FALSE(*v.get_bool("f"));
  EXPECT_EQ(*v.get_int("i"), -12);
  EXPECT_EQ(*v.get_double("i"), -12.0);
  EXPECT_EQ(*v.get_double("d"), 1.5e-3);
  EXPECT_EQ(*v.get_string("s"), "x");
  EXPECT_EQ(*v.at("o")->get_int("k"), 2);
  std::vector<JsonKind> kinds;
  for (JsonValue e : *v.at("a")) kinds.push_back(e.kind());
  EXPECT_EQ(kinds, (std::vector{JsonKind::integer, JsonKind::array, JsonKind::object}));
  std::string keys;
  for (JsonValue e : v) keys += e.key();
  EXPECT_EQ(keys, "ntfidsao");
}

TEST(Json, NumbersAreExact) {
  const Json json = good(
      "[9223372036854775807, -9223372036854775808, 9223372036854775808, 0.1, -0, "
      "1000000000000000019884624838656, 1E+2]");
  std::vector<JsonValue> v;
  for (JsonValue e : json.root()) v.push_back(e);
  EXPECT_EQ(*v[0].as_int(), INT64_MAX);
  EXPECT_EQ(*v[1].as_int(), INT64_MIN);
  expect_error(v[2].as_int(), Code::kCorruptData,
               {"config.json: [2]: expected integer, got number"});
  EXPECT_EQ(*v[2].as_double(), 9223372036854775808.0);
  EXPECT_EQ(*v[3].as_double(), 0.1);
  EXPECT_EQ(*v[4].as_int(), 0);
  EXPECT_EQ(*v[5].as_double(), 1000000000000000019884624838656.0);  // transformers' "no limit"
  EXPECT_EQ(*v[6].as_double(), 100.0);
}

TEST(Json, StringsAreUnescaped) {
  const Json json =
      good(R"(["\"\\\/\b\f\n\r\t", "\u0041\u00e9\u20ac\ud83d\ude00", "é€😀", "\u0000", ""])");
  const std::string_view wanted[] = {"\"\\/\b\f\n\r\t", "Aé€😀", "é€😀", std::string_view("\0", 1),
                                     ""};
  size_t i = 0;
  for (JsonValue e : json.root()) EXPECT_EQ(*e.as_string(), wanted[i++]);
  EXPECT_EQ(i, 5u);
}

TEST(Json, ErrorsNameTheField) {
  const Json json = good(
      R"({"rope_scaling": {"factor": "8", "none": null}, "layers": [{"heads": 3}, {"heads": true}], "b\u0007d": 1})");
  const JsonValue rope = *json.root().at("rope_scaling");
  expect_error(rope.get_double("factor"), Code::kCorruptData,
               {"config.json: rope_scaling.factor: expected number, got string"});
  expect_error(rope.get_int("absent"), Code::kNotFound,
               {"config.json: rope_scaling: no member \"absent\""});
  expect_error(json.root().get_int("rope_scaling"), Code::kCorruptData,
               {"config.json: rope_scaling: expected integer, got object"});
  expect_error(rope.at("factor")->at("x"), Code::kCorruptData, {"expected object, got string"});
  expect_error(json.root().as_array(), Code::kCorruptData,
               {"the document: expected array, got object"});
  expect_error(json.root().get_string("b\ad"), Code::kCorruptData, {R"("b\x07d")"});
  std::string path;
  for (JsonValue layer : *json.root().at("layers"))
    if (const auto heads = layer.get_int("heads"); !heads.ok()) path = heads.status().message();
  EXPECT_EQ(path, "config.json: layers[1].heads: expected integer, got boolean");
}

TEST(Json, FallbackOnlyForAbsentOrNull) {
  const Json json = good(R"({"null": null, "int": 1, "text": "x"})");
  const JsonValue v = json.root();
  EXPECT_EQ(*v.get_int("absent", 7), 7);
  EXPECT_EQ(*v.get_int("null", 7), 7);
  EXPECT_EQ(*v.get_int("int", 7), 1);
  EXPECT_EQ(*v.get_double("absent", 0.5), 0.5);
  EXPECT_EQ(*v.get_string("null", "d"), "d");
  EXPECT_TRUE(*v.get_bool("absent", true));
  expect_error(v.get_int("text", 7), Code::kCorruptData, {"text: expected integer, got string"});
  expect_error(v.get_bool("int", true), Code::kCorruptData,
               {"int: expected boolean, got integer"});
}

TEST(Json, MovingKeepsValuesValid) {
  Json first = good(R"({"k": "value that is longer than a short string"})");
  const JsonValue v = first.root();
  const Json second = std::move(first);
  EXPECT_EQ(*v.get_string("k"), "value that is longer than a short string");
}

TEST(Json, RefusesWhatIsNotJson) {
  const std::string_view bad[] = {"",
                                  " ",
                                  "{",
                                  "[",
                                  "[1",
                                  "[1,",
                                  "[1,]",
                                  "[,1]",
                                  "{\"a\"}",
                                  "{\"a\":}",
                                  "{\"a\":1,}",
                                  "{a:1}",
                                  "{'a':1}",
                                  "1 2",
                                  "[1 2]",
                                  "nul",
                                  "truefalse",
                                  "True",
                                  "NaN",
                                  "Infinity",
                                  "-",
                                  "-a",
                                  "+1",
                                  "01",
                                  "-01",
                                  ".5",
                                  "1.",
                                  "1.e3",
                                  "1e",
                                  "1e+",
                                  "0x10",
                                  "1e999",
                                  "-1e999",
                                  "\"",
                                  "\"a",
                                  "\"\\\"",
                                  "\"\\x41\"",
                                  "\"\\u12\"",
                                  "\"\\u12g4\"",
                                  "\"\\ud800\"",
                                  "\"\\udc00\"",
                                  "\"\\ud800\\u0041\"",
                                  "\"\n\"",
                                  "// x\n1",
                                  "[1]]",
                                  "}",
                                  "{\"a\":1 \"b\":2}",
                                  "\xef\xbb\xbf{}",
                                  "\"\xff\"",
                                  "\"\xc0\x80\"",
                                  "\"\xed\xa0\x80\"",
                                  "\"\xf4\x90\x80\x80\"",
                                  "\"\xe2\x82\"",
                                  "\"\xf0\x80\x80\x80\""};
  for (std::string_view text : bad) {
    SCOPED_TRACE(text);
    expect_error(Json::parse(text, "x.json"), Code::kCorruptData, {"x.json: "});
  }
}

TEST(Json, RefusesDuplicateKeys) {
  expect_error(Json::parse(R"({"a": 1, "b": {"x": 1, "y": 2, "x": 3}})", "x.json"),
               Code::kCorruptData, {"x.json: byte", "duplicate key \"x\""});
  expect_error(Json::parse(R"({"a": 1, "\u0061": 2})", "x.json"), Code::kCorruptData,
               {"duplicate key \"a\""});
  EXPECT_TRUE(Json::parse(R"([{"a": 1}, {"a": 2}])", "x.json").ok());
}

TEST(Json, LimitsActAtTheirEdge) {
  const std::string nested = std::string(64, '[') + std::string(64, ']');
  EXPECT_TRUE(Json::parse(nested, "x.json").ok());
  expect_error(Json::parse("[" + nested + "]", "x.json"), Code::kLimitExceeded,
               {"x.json: byte 64: nested deeper than 64"});
  // A million brackets must neither recurse nor allocate a node each.
  expect_error(Json::parse(std::string(1'000'000, '['), "x.json"), Code::kLimitExceeded,
               {"nested deeper"});
  EXPECT_TRUE(Json::parse("[1]", "x.json", {.bytes = 3}).ok());
  expect_error(Json::parse("[12]", "x.json", {.bytes = 3}), Code::kLimitExceeded,
               {"4 bytes of JSON, at most 3"});
  std::string many = "[1";
  for (int i = 0; i < (1 << 20); ++i) many += ",1";
  expect_error(Json::parse(many + "]", "x.json"), Code::kLimitExceeded,
               {"JSON values, at most 1048576"});
}

TEST(Json, EveryPrefixOfADocumentIsAnError) {
  const std::string text = R"({"a": [1, -2.5e3, "x\u00e9\n", {"b": null}], "c": true})";
  for (size_t n = 0; n < text.size(); ++n)
    EXPECT_FALSE(Json::parse(std::string_view(text).substr(0, n), "x.json").ok()) << n;
  EXPECT_TRUE(Json::parse(text, "x.json").ok());
}

TEST(Json, ReadsAFile) {
  const testing::TempFolder folder;
  EXPECT_EQ(*Json::parse_file(folder.write("c.json", R"({"v": 3})"))->root().get_int("v"), 3);
  expect_error(Json::parse_file(folder.path() + "/none.json"), Code::kNotFound, {"none.json"});
  expect_error(Json::parse_file(folder.path()), Code::kInvalidArgument, {"a directory"});
  expect_error(Json::parse_file(folder.write("empty.json", "")), Code::kCorruptData,
               {"empty.json: byte 0"});
}

}  // namespace
}  // namespace vivace::engine
