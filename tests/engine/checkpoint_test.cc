#include "vivace/engine/checkpoint/checkpoint.h"

#include <sys/resource.h>
#include <sys/stat.h>

#include "tests/engine/checkpoint_files.h"
#include "vivace/base/sha256.h"

namespace vivace::engine {
namespace {

using namespace testing;

std::string one_tensor(const std::string& name) {
  return safetensors_file(
      R"({")" + name + R"(":{"dtype":"U8","shape":[2,2],"data_offsets":[0,4]}})", 4);
}

std::string gguf_bytes() {
  GgufFile f;
  f.pairs = {gguf_pair("general.architecture", 8, gguf_string("llama"))};
  f.tensors = {{"w", {4}, 0, 0}};
  f.data = le(1.f) + le(2.f) + le(3.f) + le(4.f);
  return f.bytes();
}

TEST(Checkpoint, GgufFile) {
  const TempFolder folder;
  auto opened = Checkpoint::open(folder.write("m.gguf", gguf_bytes()));
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  const Checkpoint c = std::move(opened).value();
  EXPECT_EQ(c.format(), Format::gguf);
  EXPECT_EQ(*c.metadata().get_string("general.architecture"), "llama");
  const auto w = c.tensor("w");
  ASSERT_TRUE(w.ok());
  EXPECT_EQ(w->shape, Shape(4));
  EXPECT_EQ(w->place, Place::host);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(w->data) % 32, 0u);
  EXPECT_EQ(static_cast<const float*>(w->data)[3], 4.f);
  EXPECT_EQ(*c.digest(), hex(sha256(gguf_bytes())));
  expect_error(c.tensor("v"), Code::kNotFound, {"m.gguf: no tensor \"v\" among 1"});
  EXPECT_EQ(c.find("v"), nullptr);
}

TEST(Checkpoint, GgufByMagicUnderAnyName) {
  const TempFolder folder;
  EXPECT_TRUE(Checkpoint::open(folder.write("blob", gguf_bytes())).ok());
  EXPECT_TRUE(Checkpoint::open(folder.write("ggml-model.bin", gguf_bytes())).ok());
  expect_error(Checkpoint::open(folder.write("model.xyz", "hello")), Code::kUnsupported,
               {"model.xyz: neither GGUF nor"});
}

TEST(Checkpoint, DuplicateTensorInGguf) {
  const TempFolder folder;
  GgufFile f;
  f.tensors = {{"w", {4}, 0, 0}, {"w", {4}, 0, 32}};
  f.data = std::string(48, 'x');
  expect_error(Checkpoint::open(folder.write("m.gguf", f.bytes())), Code::kCorruptData,
               {"m.gguf: duplicate tensor \"w\""});
}

TEST(Checkpoint, Folders) {
  const TempFolder folder;
  expect_error(Checkpoint::open(folder.path()), Code::kNotFound, {"found none"});
  folder.write("pytorch_model.bin", "x");
  expect_error(Checkpoint::open(folder.path()), Code::kUnsupported,
               {"pytorch_model.bin", "pickle", "safetensors"});
  folder.write("q4.gguf", gguf_bytes());
  EXPECT_EQ(Checkpoint::open(folder.path())->format(), Format::gguf);
  folder.write("q8.gguf", gguf_bytes());
  expect_error(Checkpoint::open(folder.path()), Code::kInvalidArgument,
               {"2 checkpoints (q4.gguf, q8.gguf); name the file"});
  folder.write("model.safetensors", one_tensor("a"));
  EXPECT_EQ(Checkpoint::open(folder.path())->format(), Format::safetensors);
}

TEST(Checkpoint, RefusesPicklesAndOddFiles) {
  const TempFolder folder;
  for (const char* name : {"m.bin", "m.pt", "m.pth", "m.ckpt", "m.pkl"})
    expect_error(Checkpoint::open(folder.write(name, "\x80\x04K\x01.")), Code::kUnsupported,
                 {name, "runs when it is loaded", "safetensors"});
  expect_error(Checkpoint::open(folder.path() + "/none.gguf"), Code::kNotFound, {"none.gguf"});
  expect_error(Checkpoint::open(folder.write("empty.gguf", "")), Code::kCorruptData,
               {"empty.gguf", "magic"});
  expect_error(Checkpoint::open(folder.write("empty.safetensors", "")), Code::kCorruptData,
               {"empty.safetensors"});
  ASSERT_EQ(::mkfifo((folder.path() + "/pipe.gguf").c_str(), 0600), 0);
  expect_error(Checkpoint::open(folder.path() + "/pipe.gguf"), Code::kInvalidArgument,
               {"wanted a regular file"});  // and does not hang
}

TEST(Checkpoint, Shards) {
  const TempFolder folder;
  const std::string index = R"({"weight_map":{"a":"m-1.safetensors","b":"m-2.safetensors"}})";
  folder.write("m-1.safetensors", one_tensor("a"));
  folder.write("model.safetensors.index.json", index);
  expect_error(Checkpoint::open(folder.path()), Code::kNotFound,
               {"index.json: weight_map", "m-2.safetensors"});
  folder.write("m-2.safetensors", one_tensor("b"));
  auto opened = Checkpoint::open(folder.path());
  ASSERT_TRUE(opened.ok()) << opened.status().to_string();
  EXPECT_EQ(opened->files().size(), 2u);
  EXPECT_EQ(opened->find("b")->file, 1);
  EXPECT_EQ(static_cast<const uint8_t*>(opened->tensor("b")->data)[3], 3);
  EXPECT_EQ(*opened->digest(),
            hex(sha256(hex(sha256(one_tensor("a"))) + hex(sha256(one_tensor("b"))))));

  folder.write("m-2.safetensors", one_tensor("c"));
  expect_error(Checkpoint::open(folder.path()), Code::kCorruptData,
               {"puts tensor \"b\" in m-2.safetensors, which does not hold it"});
  folder.write("m-2.safetensors", one_tensor("a"));
  expect_error(Checkpoint::open(folder.path()), Code::kCorruptData, {"duplicate tensor \"a\""});
  folder.write(
      "m-2.safetensors",
      safetensors_file(
          R"({"b":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"x":{"dtype":"U8","shape":[],"data_offsets":[1,2]}})",
          2));
  expect_error(Checkpoint::open(folder.path()), Code::kCorruptData,
               {"lists 2 tensors, the shards hold 3"});
  folder.write("m-2.safetensors", one_tensor("b").substr(0, 60));
  expect_error(Checkpoint::open(folder.path()), Code::kCorruptData, {"m-2.safetensors"});
}

TEST(Checkpoint, DigestSeesAChangedFile) {
  const TempFolder folder;
  const std::string path = folder.write("m.gguf", gguf_bytes());
  const auto c = Checkpoint::open(path);
  ASSERT_TRUE(c.ok());
  std::filesystem::rename(folder.write("new", gguf_bytes()), path);
  expect_error(c->digest(), Code::kIoError, {"m.gguf: changed since it was opened"});
  std::filesystem::remove(path);
  expect_error(c->digest(), Code::kNotFound, {"m.gguf"});
  EXPECT_EQ(static_cast<const float*>(c->tensor("w")->data)[0],
            1.f);  // the mapping outlives the name
}

TEST(Checkpoint, OpeningReadsNoTensorData) {
  const TempFolder folder;
  GgufFile f;
  f.tensors = {{"w", {1 << 28}, 0, 0}};
  const std::string head = f.bytes(), path = folder.write("big.gguf", head);
  std::filesystem::resize_file(path, head.size() + (uint64_t{1} << 30));  // sparse
  const auto faults = [] {
    struct rusage u = {};
    ::getrusage(RUSAGE_THREAD, &u);
    return u.ru_minflt + u.ru_majflt;
  };
  const long before = faults();
  const auto c = Checkpoint::open(path);
  const long taken = faults() - before;
  ASSERT_TRUE(c.ok()) << c.status().to_string();
  EXPECT_EQ(c->tensors()[0].bytes, uint64_t{1} << 30);
  EXPECT_LT(taken, 200);  // the kernel maps 16 pages a fault at most, so reading 1 GiB takes 16,384
}

}  // namespace
}  // namespace vivace::engine
