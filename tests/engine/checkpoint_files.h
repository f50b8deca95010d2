// Writes small GGUF and safetensors files, right or wrong, for the readers' tests.
#pragma once
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "vivace/engine/checkpoint/parse.h"

namespace vivace::engine::testing {

/// Little-endian bytes of a number.
template <class T>
std::string le(T v) {
  std::string s(sizeof(T), '\0');
  std::memcpy(s.data(), &v, sizeof(T));
  return s;
}
inline std::string gguf_string(const std::string& s) {
  return le<uint64_t>(s.size()) + s;
}
inline std::string gguf_pair(const std::string& key, uint32_t type, const std::string& payload) {
  return gguf_string(key) + le(type) + payload;
}

struct GgufTensor {
  std::string name;
  std::vector<uint64_t> dims;  // innermost first, as in the file
  uint32_t type = 0;
  uint64_t offset = 0;
};

/// A GGUF file; every field can be given a wrong value.
struct GgufFile {
  std::string magic = "GGUF";
  uint32_t version = 3;
  std::vector<std::string> pairs;
  std::vector<GgufTensor> tensors;
  uint64_t alignment = 32;
  std::string data;
  int64_t more_pairs = 0, more_tensors = 0;  // added to the counts in the header

  std::string bytes() const {
    std::string s = magic + le(version) +
                    le<uint64_t>(tensors.size() + static_cast<uint64_t>(more_tensors)) +
                    le<uint64_t>(pairs.size() + static_cast<uint64_t>(more_pairs));
    for (const std::string& p : pairs) s += p;
    for (const GgufTensor& t : tensors) {
      s += gguf_string(t.name) + le<uint32_t>(static_cast<uint32_t>(t.dims.size()));
      for (uint64_t d : t.dims) s += le(d);
      s += le(t.type) + le(t.offset);
    }
    s.resize((s.size() + alignment - 1) / alignment * alignment);
    return s + data;
  }
};

inline std::string safetensors_file(const std::string& header, size_t data_bytes) {
  std::string data(data_bytes, '\0');
  for (size_t i = 0; i < data_bytes; ++i) data[i] = static_cast<char>(i);
  return le<uint64_t>(header.size()) + header + data;
}

inline Bytes as_bytes(const std::string& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

/// A folder that goes away with the test.
class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "vivace-XXXXXX").string();
    if (!::mkdtemp(pattern.data())) ADD_FAILURE() << "mkdtemp failed";
    path_ = pattern;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  /// Writes a file and gives its path.
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream(path_ + "/" + name, std::ios::binary) << bytes;
    return path_ + "/" + name;
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// The call failed with this code, and its message holds each of these parts.
template <class T>
void expect_error(const Result<T>& r, Code code, std::initializer_list<const char*> parts) {
  ASSERT_FALSE(r.ok()) << "expected " << name(code);
  EXPECT_STREQ(name(r.status().code()), name(code)) << r.status().message();
  for (const char* part : parts)
    EXPECT_NE(r.status().message().find(part), std::string::npos)
        << "no '" << part << "' in: " << r.status().message();
}

}  // namespace vivace::engine::testing
