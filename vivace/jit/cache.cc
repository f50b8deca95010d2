#include "vivace/jit/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "vivace/base/check.h"
#include "vivace/base/sha256.h"

namespace vivace::jit {

void (*g_write_step_hook)(WriteStep step) = nullptr;

struct Cache::Counters {
  std::atomic<int64_t> hits{0}, misses{0}, repaired{0};
};

namespace {

constexpr size_t kMaxEntryBytes = 256u << 20;
constexpr std::string_view kMagic = "VVCACHE1";  // then 32 digest bytes over all that follows: key, binary
constexpr size_t kKeyBytes = 64;
constexpr int64_t kStaleSeconds = 3600;  // a temporary file this old belongs to a process that died

void step(WriteStep s) {
  if (g_write_step_hook != nullptr) g_write_step_hook(s);
}

Status io_error(const char* call, const std::string& what) {
  return Status(Code::kIoError, strf("%s(%s) failed: %s", call, what.c_str(), std::strerror(errno)));
}

// An owned file descriptor.
class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& o) noexcept : fd_(std::exchange(o.fd_, -1)) {}
  Fd& operator=(Fd&& o) noexcept { std::swap(fd_, o.fd_); return *this; }
  ~Fd() {
    if (fd_ >= 0) close(fd_);
  }
  int get() const { return fd_; }
  bool ok() const { return fd_ >= 0; }

 private:
  int fd_;
};

Status check_key(const std::string& key) {
  const bool good = key.size() == kKeyBytes && std::all_of(key.begin(), key.end(), [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
  if (good) return Status();
  return Status(Code::kInvalidArgument, strf("cache key of %zu characters: 64 lower-case hex digits are wanted", key.size()));
}

// Only what this user alone can have written is trusted.
Status check_owner(const struct stat& s, const std::string& path) {
  if (s.st_uid != geteuid())
    return Status(Code::kFailedPrecondition, strf("%s belongs to user %u, not %u: it is not read; set VIVACE_CACHE to a folder of your own",
                                                  path.c_str(), static_cast<unsigned>(s.st_uid), static_cast<unsigned>(geteuid())));
  if ((s.st_mode & 022) != 0)
    return Status(Code::kFailedPrecondition, strf("%s has mode %03o, so others can write to it: it is not read; run chmod go-w on it, after checking who did",
                                                  path.c_str(), static_cast<unsigned>(s.st_mode & 0777)));
  return Status();
}

std::string encode(const std::string& key, const Binary& binary) {
  const std::string body = key + serialize(binary);
  const Digest d = sha256(body);
  std::string out(kMagic);
  out.append(reinterpret_cast<const char*>(d.data()), d.size());
  return out + body;
}

Result<Binary> decode(const std::string& key, std::string_view bytes, const std::string& path) {
  const auto corrupt = [&](const char* why) { return Status(Code::kCorruptData, path + ": " + why); };
  const size_t head = kMagic.size() + sizeof(Digest);
  if (bytes.size() < head + kKeyBytes || bytes.substr(0, kMagic.size()) != kMagic) return corrupt("not a cache entry");
  const std::string_view body = bytes.substr(head);
  const Digest d = sha256(body);
  if (std::memcmp(d.data(), bytes.data() + kMagic.size(), d.size()) != 0) return corrupt("its digest does not match its content");
  if (body.substr(0, kKeyBytes) != key) return corrupt("it was stored under another key");
  return parse_binary(body.substr(kKeyBytes));
}

Status write_all(int fd, const char* p, size_t n, const std::string& path) {
  while (n > 0) {
    const ssize_t wrote = write(fd, p, n);
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return io_error("write", path);
    p += wrote;
    n -= static_cast<size_t>(wrote);
  }
  return Status();
}

std::string random_hex() {
  uint64_t v = 0;
  if (getrandom(&v, sizeof(v), 0) != sizeof(v)) v = static_cast<uint64_t>(getpid()) << 32 | static_cast<uint32_t>(std::clock());
  return strf("%016llx", static_cast<unsigned long long>(v));
}

// Locks `<key>.lock`. The file is removed by its holder while the lock is held, so a waiter that gets
// the lock checks that the name still leads to its file, and starts again if it does not.
Result<Fd> lock_key(int folder, const std::string& key, const std::string& where) {
  const std::string name = key + ".lock";
  for (;;) {
    Fd fd(openat(folder, name.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600));
    if (!fd.ok()) return io_error("open", where + "/" + name);
    struct stat mine = {}, now = {};
    if (fstat(fd.get(), &mine) != 0) return io_error("fstat", name);
    VV_TRY(check_owner(mine, where + "/" + name));
    while (flock(fd.get(), LOCK_EX) != 0)
      if (errno != EINTR) return io_error("flock", name);
    if (fstatat(folder, name.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_ino == mine.st_ino && now.st_dev == mine.st_dev) return fd;
  }
}

struct KeyLock {
  int folder;
  std::string name;
  Fd fd;
  ~KeyLock() {
    if (fd.ok()) unlinkat(folder, name.c_str(), 0);  // before the lock goes with fd
  }
};

}  // namespace

Cache::Cache(Cache&& o) noexcept
    : fd_(std::exchange(o.fd_, -1)), folder_(std::move(o.folder_)), counters_(std::exchange(o.counters_, nullptr)) {}
Cache& Cache::operator=(Cache&& o) noexcept {
  std::swap(fd_, o.fd_);
  std::swap(folder_, o.folder_);
  std::swap(counters_, o.counters_);
  return *this;
}
Cache::~Cache() {
  if (fd_ >= 0) close(fd_);
  delete counters_;
}

Result<std::string> Cache::default_folder() {
  const auto env = [](const char* name) { const char* v = std::getenv(name); return std::string(v == nullptr ? "" : v); };
  if (const std::string v = env("VIVACE_CACHE"); !v.empty()) return v + "/jit";
  if (const std::string x = env("XDG_CACHE_HOME"); !x.empty() && x[0] == '/') return x + "/vivace/jit";
  if (const std::string h = env("HOME"); !h.empty()) return h + "/.cache/vivace/jit";
  return Status(Code::kNotFound, "no place for the JIT cache: set VIVACE_CACHE, XDG_CACHE_HOME or HOME");
}

Result<Cache> Cache::open(const std::string& folder) {
  for (size_t slash = folder.find('/', 1); slash != std::string::npos; slash = folder.find('/', slash + 1))
    if (mkdir(folder.substr(0, slash).c_str(), 0700) != 0 && errno != EEXIST) return io_error("mkdir", folder.substr(0, slash));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return io_error("mkdir", folder);
  Cache c;
  c.folder_ = folder;
  c.fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (c.fd_ < 0 && (errno == ELOOP || errno == ENOTDIR))
    return Status(Code::kFailedPrecondition, folder + " is a symbolic link or a file: the JIT cache must be a real folder; set VIVACE_CACHE to one");
  if (c.fd_ < 0) return io_error("open", folder);
  struct stat s = {};
  if (fstat(c.fd_, &s) != 0) return io_error("fstat", folder);
  VV_TRY(check_owner(s, folder));
  c.counters_ = new Counters;
  c.remove_stale_files();
  return c;
}

Result<Binary> Cache::load(const std::string& key) const {
  VV_TRY(check_key(key));
  const std::string name = key + ".vvc", path = folder_ + "/" + name;
  const Fd fd(openat(fd_, name.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  if (!fd.ok() && errno == ENOENT) return Status(Code::kNotFound, path + " does not exist");
  if (!fd.ok() && errno == ELOOP) return Status(Code::kCorruptData, path + " is a symbolic link: it is not followed");
  if (!fd.ok()) return io_error("open", path);
  struct stat s = {};
  if (fstat(fd.get(), &s) != 0) return io_error("fstat", path);
  if (!S_ISREG(s.st_mode)) return Status(Code::kCorruptData, path + " is not a regular file");
  VV_TRY(check_owner(s, path));
  if (s.st_size < 0 || static_cast<uint64_t>(s.st_size) > kMaxEntryBytes)
    return Status(Code::kCorruptData, strf("%s has %lld bytes, at most %zu are possible", path.c_str(), static_cast<long long>(s.st_size), kMaxEntryBytes));
  // The digest is taken over the bytes that are used, so nothing can change between check and use.
  std::string bytes(static_cast<size_t>(s.st_size), '\0');
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t got = read(fd.get(), bytes.data() + at, bytes.size() - at);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return io_error("read", path);
    if (got == 0) break;
    at += static_cast<size_t>(got);
  }
  return decode(key, std::string_view(bytes).substr(0, at), path);
}

Status Cache::write_entry(const std::string& key, const Binary& binary) const {
  const std::string name = key + ".vvc", temp = ".tmp-" + key + "-" + random_hex(), path = folder_ + "/" + temp;
  const std::string bytes = encode(key, binary);
  const Fd fd(openat(fd_, temp.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.ok()) return io_error("open", path);
  step(WriteStep::created);
  Status s = write_all(fd.get(), bytes.data(), bytes.size() / 2, path);
  step(WriteStep::half_written);
  if (s.ok()) s = write_all(fd.get(), bytes.data() + bytes.size() / 2, bytes.size() - bytes.size() / 2, path);
  step(WriteStep::written);
  if (s.ok() && fsync(fd.get()) != 0) s = io_error("fsync", path);
  step(WriteStep::synced);
  if (s.ok() && renameat(fd_, temp.c_str(), fd_, name.c_str()) != 0) s = io_error("rename", path);
  step(WriteStep::renamed);
  if (!s.ok()) {
    unlinkat(fd_, temp.c_str(), 0);
    return s;
  }
  if (fsync(fd_) != 0) return io_error("fsync", folder_);
  step(WriteStep::done);
  return Status();
}

Status Cache::store(const std::string& key, const Binary& binary) {
  VV_TRY(check_key(key));
  VV_ASSIGN(Fd fd, lock_key(fd_, key, folder_));
  const KeyLock lock{fd_, key + ".lock", std::move(fd)};
  step(WriteStep::locked);
  return write_entry(key, binary);
}

Result<Binary> Cache::get_or_build(const std::string& key, const std::function<Result<Binary>()>& build) {
  Result<Binary> found = load(key);
  if (found.ok()) {
    ++counters_->hits;
    return found;
  }
  if (found.status().code() != Code::kNotFound && found.status().code() != Code::kCorruptData) return found;
  VV_ASSIGN(Fd fd, lock_key(fd_, key, folder_));
  const KeyLock lock{fd_, key + ".lock", std::move(fd)};
  step(WriteStep::locked);
  // Looked at again, digest included, now that nobody else can be writing it.
  found = load(key);
  if (found.ok()) {
    ++counters_->hits;
    return found;
  }
  const bool bad = found.status().code() == Code::kCorruptData;
  if (!bad && found.status().code() != Code::kNotFound) return found;
  ++counters_->misses;
  VV_ASSIGN(Binary built, build());
  VV_TRY(write_entry(key, built));
  if (bad) ++counters_->repaired;
  return built;
}

Cache::Stats Cache::stats() const { return {counters_->hits, counters_->misses, counters_->repaired}; }

void Cache::remove_stale_files() const {
  const int copy = openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* dir = copy < 0 ? nullptr : fdopendir(copy);
  if (dir == nullptr) {
    if (copy >= 0) close(copy);
    return;
  }
  const time_t now = time(nullptr);
  while (const dirent* e = readdir(dir)) {
    struct stat s = {};
    if (std::strncmp(e->d_name, ".tmp-", 5) == 0 && fstatat(fd_, e->d_name, &s, AT_SYMLINK_NOFOLLOW) == 0 && s.st_uid == geteuid() &&
        now - s.st_mtime > kStaleSeconds)
      unlinkat(fd_, e->d_name, 0);
  }
  closedir(dir);
}

}  // namespace vivace::jit
