#include "vivace/engine/checkpoint/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace vivace::engine {
namespace {

int64_t modified_ns_of(const struct stat& s) {
  return s.st_mtim.tv_sec * 1'000'000'000ll + s.st_mtim.tv_nsec;
}

Status system_error(const std::string& path, const char* what) {
  const int error = errno;
  const Code code = error == ENOENT || error == ENOTDIR ? Code::kNotFound : Code::kIoError;
  return Status(code, strf("%s: %s: %s", path.c_str(), what, std::strerror(error)));
}

}  // namespace

Result<MappedFile> MappedFile::open(const std::string& path) {
  // O_NONBLOCK: opening a named pipe must not wait for its writer.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return system_error(path, "cannot open");
  struct stat s = {};
  Status status;
  MappedFile file;
  file.path_ = path;
  if (::fstat(fd, &s) != 0) {
    status = system_error(path, "cannot stat");
  } else if (!S_ISREG(s.st_mode)) {
    status = Status(Code::kInvalidArgument,
                    path + ": wanted a regular file, got " +
                        (S_ISDIR(s.st_mode) ? "a directory" : "a pipe or device"));
  } else if (s.st_size > 0) {
    void* p = ::mmap(nullptr, static_cast<size_t>(s.st_size), PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED) {
      status = system_error(path, "cannot map");
    } else {
      file.data_ = static_cast<const uint8_t*>(p);
      file.size_ = static_cast<size_t>(s.st_size);
      file.guard_ = MappingGuard(p, file.size_);
    }
  }
  ::close(fd);  // the mapping keeps the file alive; many shards must not use up descriptors
  if (!status.ok()) return status;
  file.inode_ = s.st_ino;
  file.device_ = s.st_dev;
  file.stored_ = std::min(static_cast<uint64_t>(s.st_size), static_cast<uint64_t>(s.st_blocks) * 512);
  file.modified_ns_ = modified_ns_of(s);
  return file;
}

MappedFile& MappedFile::operator=(MappedFile&& o) noexcept {
  if (this == &o) return *this;
  unmap();
  path_ = std::move(o.path_);
  data_ = std::exchange(o.data_, nullptr);
  size_ = std::exchange(o.size_, 0);
  inode_ = o.inode_;
  device_ = o.device_;
  stored_ = o.stored_;
  guard_ = std::move(o.guard_);
  modified_ns_ = o.modified_ns_;
  return *this;
}

Status MappedFile::check_unchanged() const {
  struct stat s = {};
  if (::stat(path_.c_str(), &s) != 0) return system_error(path_, "cannot stat");
  if (s.st_ino == inode_ && static_cast<size_t>(s.st_size) == size_ &&
      modified_ns_of(s) == modified_ns_)
    return Status();
  return Status(Code::kIoError,
                strf("%s: changed since it was opened (had %zu bytes, has %lld); load it again",
                     path_.c_str(), size_, static_cast<long long>(s.st_size)));
}

Status MappedFile::check_in_place() const {
  struct stat s = {};
  const bool same = ::stat(path_.c_str(), &s) == 0 && s.st_ino == inode_ && s.st_dev == device_;
  if (!lost() && (!same || (static_cast<size_t>(s.st_size) == size_ && modified_ns_of(s) == modified_ns_)))
    return Status();
  return Status(Code::kIoError,
                path_ +
                    ": it was cut short or overwritten in place while it is in use; nothing more is computed from it. "
                    "Load the model again, and replace files by rename");
}

void MappedFile::unmap() {
  guard_.release();
  if (data_) ::munmap(const_cast<uint8_t*>(data_), size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace vivace::engine
