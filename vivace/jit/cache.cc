#include "vivace/jit/cache.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <mutex>
#include <set>

#include "vivace/base/check.h"
#include "vivace/base/sha256.h"

namespace vivace::jit {

struct Cache::Counters {
  std::atomic<int64_t> hits{0}, misses{0}, repaired{0}, unkept{0};
};

namespace {

constexpr size_t kMaxEntryBytes = 256u << 20;
constexpr std::string_view kMagic = "VVCACHE1";  // then 32 digest bytes over all that follows: key, binary
constexpr size_t kKeyBytes = 64;
constexpr int64_t kStaleSeconds = 3600;  // a temporary file this old belongs to a process that died

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
  const bool good = key.size() == kKeyBytes && std::all_of(key.begin(), key.end(), [](char c) {
                      return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
                    });
  if (good) return Status();
  return Status(Code::kInvalidArgument,
                strf("cache key of %zu characters: 64 lower-case hex digits are wanted", key.size()));
}

// Only what this user alone can have written is trusted.
Status check_owner(const struct stat& s, const std::string& path) {
  if (s.st_uid != geteuid())
    return Status(Code::kFailedPrecondition,
                  strf("%s belongs to user %u, not %u: it is not read; set VIVACE_CACHE to a folder of your own",
                       path.c_str(), static_cast<unsigned>(s.st_uid), static_cast<unsigned>(geteuid())));
  if ((s.st_mode & 022) != 0)
    return Status(
        Code::kFailedPrecondition,
        strf(
            "%s has mode %03o, so others can write to it: it is not read; run chmod go-w on it, after checking who did",
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
  if (std::memcmp(d.data(), bytes.data() + kMagic.size(), d.size()) != 0)
    return corrupt("its digest does not match its content");
  if (body.substr(0, kKeyBytes) != key) return corrupt("it was stored under another key");
  return parse_binary(body.substr(kKeyBytes));
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
    if (fstatat(folder, name.c_str(), &now, AT_SYMLINK_NOFOLLOW) == 0 && now.st_ino == mine.st_ino &&
        now.st_dev == mine.st_dev)
      return fd;
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
  const auto env = [](const char* name) {
    const char* v = std::getenv(name);
    return std::string(v == nullptr ? "" : v);
  };
  if (const std::string v = env("VIVACE_CACHE"); !v.empty()) return v + "/jit";
  if (const std::string x = env("XDG_CACHE_HOME"); !x.empty() && x[0] == '/') return x + "/vivace/jit";
  if (const std::string h = env("HOME"); !h.empty()) return h + "/.cache/vivace/jit";
  return Status(Code::kNotFound, "no place for the JIT cache: set VIVACE_CACHE, XDG_CACHE_HOME or HOME");
}

Result<Cache> Cache::open(const std::string& folder) {
  for (size_t slash = folder.find('/', 1); slash != std::string::npos; slash = folder.find('/', slash + 1))
    if (mkdir(folder.substr(0, slash).c_str(), 0700) != 0 && errno != EEXIST)
      return io_error("mkdir", folder.substr(0, slash));
  if (mkdir(folder.c_str(), 0700) != 0 && errno != EEXIST) return io_error("mkdir", folder);
  Cache c;
  c.folder_ = folder;
  c.fd_ = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (c.fd_ < 0 && (errno == ELOOP || errno == ENOTDIR))
    return Status(
        Code::kFailedPrecondition,
        folder + " is a symbolic link or a file: the JIT cache must be a real folder; set VIVACE_CACHE to one");
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
    return Status(Code::kCorruptData, strf("%s has %lld bytes, at most %zu are possible", path.c_str(),
                                           static_cast<long long>(s.st_size), kMaxEntryBytes));
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
  const std::string bytes = encode(key, binary);
  const std::string_view whole = bytes;
  return write_whole(fd_, key + ".vvc", {&whole, 1}).with_context(folder_);
}

Status Cache::store(const std::string& key, const Binary& binary) {
  VV_TRY(check_key(key));
  VV_ASSIGN(Fd fd, lock_key(fd_, key, folder_));
  const KeyLock lock{fd_, key + ".lock", std::move(fd)};
  write_step(WriteStep::locked);
  return write_entry(key, binary);
}

Result<Binary> Cache::get_or_build(const std::string& key, const std::function<Result<Binary>()>& build) {
  const auto unusable = [](const Status& s) { return s.code() != Code::kNotFound && s.code() != Code::kCorruptData; };
  const auto without = [&](const Status& why) {
    warn_no_cache(folder_, why);
    ++counters_->misses, ++counters_->unkept;
    return build();
  };
  Result<Binary> found = load(key);
  if (found.ok()) {
    ++counters_->hits;
    return found;
  }
  if (unusable(found.status())) return without(found.status());
  Result<Fd> fd = lock_key(fd_, key, folder_);
  if (!fd.ok()) return without(fd.status());
  const KeyLock lock{fd_, key + ".lock", std::move(fd).value()};
  write_step(WriteStep::locked);
  // Looked at again, digest included, now that nobody else can be writing it.
  found = load(key);
  if (found.ok()) {
    ++counters_->hits;
    return found;
  }
  if (unusable(found.status())) return without(found.status());
  ++counters_->misses;
  VV_ASSIGN(Binary built, build());
  if (const Status kept = write_entry(key, built); !kept.ok()) {
    warn_no_cache(folder_, kept);
    ++counters_->unkept;
  } else if (found.status().code() == Code::kCorruptData) {
    ++counters_->repaired;
  }
  return built;
}

Cache::Stats Cache::stats() const {
  return {counters_->hits, counters_->misses, counters_->repaired, counters_->unkept};
}

void Cache::remove_stale_files() const {
  const int copy = openat(fd_, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* dir = copy < 0 ? nullptr : fdopendir(copy);
  if (dir == nullptr) {
    if (copy >= 0) close(copy);
    return;
  }
  while (const dirent* e = readdir(dir)) remove_if_stale(e->d_name);
  closedir(dir);
}

// Temporary files and locks that processes left when they were killed.
void Cache::remove_if_stale(const char* name) const {
  struct stat s = {}, now = {};
  const bool temp = std::strncmp(name, ".tmp-", 5) == 0;
  if ((!temp && !std::string_view(name).ends_with(".lock")) || fstatat(fd_, name, &s, AT_SYMLINK_NOFOLLOW) != 0) return;
  if (!S_ISREG(s.st_mode) || s.st_uid != geteuid() || time(nullptr) - s.st_mtime <= kStaleSeconds) return;
  if (temp) {
    unlinkat(fd_, name, 0);
    return;
  }
  const Fd fd(openat(fd_, name, O_RDWR | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
  const bool ours = fd.ok() && flock(fd.get(), LOCK_EX | LOCK_NB) == 0 && fstat(fd.get(), &now) == 0 &&
                    now.st_ino == s.st_ino && now.st_dev == s.st_dev;
  if (ours) unlinkat(fd_, name, 0);  // while it is held: who waits for it sees that the name leads elsewhere
}

void warn_no_cache(const std::string& folder, const Status& why) {
  static std::mutex mutex;
  static std::set<std::string>* const said = new std::set<std::string>;
  const std::lock_guard<std::mutex> lock(mutex);
  if (said->insert(folder).second)
    std::fprintf(stderr,
                 "vivace: the cache of compiled kernels is not used, so every process compiles them: %s; VIVACE_CACHE "
                 "names another folder\n",
                 why.message().c_str());
}

}  // namespace vivace::jit
