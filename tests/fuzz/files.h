// A folder for targets whose parser takes a path: written anew for each input, in memory where the system has /dev/shm.
#pragma once
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <string>
#include <string_view>

#include "tests/fuzz/fuzz.h"

namespace vivace::fuzz {

class Folder {
 public:
  Folder() {
    std::error_code none;
    const char* const base = std::filesystem::exists("/dev/shm", none) ? "/dev/shm" : "/tmp";
    path_ = std::string(base) + "/vivace_fuzz_" + std::to_string(::getpid());
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code none;
    std::filesystem::remove_all(path_, none);
  }
  const std::string& path() const { return path_; }
  std::string write(const std::string& name, std::string_view bytes) const {
    const std::string file = path_ + "/" + name;
    std::FILE* const f = std::fopen(file.c_str(), "wb");
    require(f != nullptr, "a file can be written");
    require(std::fwrite(bytes.data(), 1, bytes.size(), f) == bytes.size(), "a file can be written whole");
    std::fclose(f);
    return file;
  }

 private:
  std::string path_;
};

}  // namespace vivace::fuzz
