#include "vivace/jit/whole_file.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <vector>

#include "vivace/base/check.h"

namespace vivace::jit {

void (*g_write_step_hook)(WriteStep step) = nullptr;

void write_step(WriteStep step) {
  if (g_write_step_hook != nullptr) g_write_step_hook(step);
}

namespace {

Status write_all(int fd, std::string_view bytes, const std::string& path) {
  while (!bytes.empty()) {
    const ssize_t wrote = write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return io_error("write", path);
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return Status();
}

std::string random_hex() {
  uint64_t v = 0;
  if (getrandom(&v, sizeof(v), 0) != sizeof(v))
    v = static_cast<uint64_t>(getpid()) << 32 | static_cast<uint32_t>(std::clock());
  return strf("%016llx", static_cast<unsigned long long>(v));
}

}  // namespace

Status io_error(const char* call, const std::string& what) {
  return Status(Code::kIoError, strf("%s(%s) failed: %s", call, what.c_str(), std::strerror(errno)));
}

Status write_whole(int dir, const std::string& name, std::span<const std::string_view> parts) {
  const size_t slash = name.rfind('/') + 1;  // 0 without one
  const std::string temp = name.substr(0, slash) + ".tmp-" + random_hex() + "-" + name.substr(slash, 200);
  const int fd =
      openat(dir, temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, dir == AT_FDCWD ? 0666 : 0600);
  if (fd < 0) return io_error("open", temp);
  write_step(WriteStep::created);
  Status s;
  for (size_t i = 0; i < parts.size() && s.ok(); ++i) {
    const size_t half = parts[i].size() / 2;
    s = write_all(fd, parts[i].substr(0, half), temp);
    if (i == 0) write_step(WriteStep::half_written);
    if (s.ok()) s = write_all(fd, parts[i].substr(half), temp);
  }
  write_step(WriteStep::written);
  if (s.ok() && fsync(fd) != 0) s = io_error("fsync", temp);
  if (close(fd) != 0 && s.ok()) s = io_error("close", temp);
  write_step(WriteStep::synced);
  if (s.ok() && renameat(dir, temp.c_str(), dir, name.c_str()) != 0) s = io_error("rename", temp);
  write_step(WriteStep::renamed);
  if (!s.ok()) {
    unlinkat(dir, temp.c_str(), 0);
    return s;
  }
  const int folder = openat(dir, slash > 0 ? name.substr(0, slash).c_str() : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0 || fsync(folder) != 0) s = io_error("fsync", name.substr(0, slash));
  if (folder >= 0) close(folder);
  write_step(WriteStep::done);
  return s;
}

}  // namespace vivace::jit
