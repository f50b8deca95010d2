#include "vivace/jit/pack.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <thread>

#include "vivace/base/check.h"
#include "vivace/base/sha256.h"
#include "vivace/jit/whole_file.h"

// Layout, little-endian:
//   magic[8] count:u64 digest-of-index[32] | index: count rows, sorted by key | binaries
//   row: key[64] offset:u64 bytes:u64 digest[32]
namespace vivace::jit {
namespace {

constexpr char kMagic[] = "VVPACK01";
constexpr size_t kHead = 8 + 8 + 32, kKeyBytes = 64, kRow = kKeyBytes + 8 + 8 + 32;

void put_u64(std::string* out, uint64_t v) {
  for (int i = 0; i < 8; ++i) *out += static_cast<char>(v >> (8 * i));
}
uint64_t get_u64(const char* p) {
  uint64_t v = 0;
  for (int i = 0; i < 8; ++i) v |= static_cast<uint64_t>(static_cast<uint8_t>(p[i])) << (8 * i);
  return v;
}
void put_digest(std::string* out, std::string_view bytes) {
  const Digest d = sha256(bytes);
  out->append(reinterpret_cast<const char*>(d.data()), d.size());
}
bool matches(std::string_view bytes, const char* digest) {
  const Digest d = sha256(bytes);
  return std::memcmp(d.data(), digest, d.size()) == 0;
}

}  // namespace

struct Pack::Rep {
  std::string path;
  const char* data = nullptr;
  size_t bytes = 0;
  size_t count = 0;
  ~Rep() {
    if (data != nullptr) munmap(const_cast<char*>(data), bytes);
  }
  const char* row(size_t i) const { return data + kHead + i * kRow; }
  std::string_view key(size_t i) const { return {row(i), kKeyBytes}; }
};

Result<Pack> Pack::open(const std::string& path) {
  auto rep = std::make_shared<Rep>();
  rep->path = path;
  const auto corrupt = [&](const std::string& why) { return Status(Code::kCorruptData, "pack " + path + ": " + why); };
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a pipe is refused, not waited for
  if (fd < 0)
    return Status(errno == ENOENT ? Code::kNotFound : Code::kIoError,
                  strf("pack %s: %s", path.c_str(), std::strerror(errno)));
  struct stat s = {};
  const bool regular = fstat(fd, &s) == 0 && S_ISREG(s.st_mode) && s.st_size >= static_cast<off_t>(kHead);
  void* map = regular ? mmap(nullptr, static_cast<size_t>(s.st_size), PROT_READ, MAP_PRIVATE, fd, 0) : MAP_FAILED;
  close(fd);
  if (!regular) return corrupt("too short for a pack, or no regular file");
  if (map == MAP_FAILED) return Status(Code::kIoError, strf("pack %s: mmap: %s", path.c_str(), std::strerror(errno)));
  rep->data = static_cast<const char*>(map);
  rep->bytes = static_cast<size_t>(s.st_size);

  if (std::memcmp(rep->data, kMagic, 8) != 0)
    return corrupt("not a Vivace pack of this version; make it again with `vivace pack`");
  const uint64_t count = get_u64(rep->data + 8);
  if (count > (rep->bytes - kHead) / kRow)
    return corrupt(
        strf("its index of %llu rows does not fit in %zu bytes", static_cast<unsigned long long>(count), rep->bytes));
  rep->count = static_cast<size_t>(count);
  if (!matches({rep->data + kHead, rep->count * kRow}, rep->data + 16))
    return corrupt("the digest of its index does not match");
  for (size_t i = 0; i < rep->count; ++i) {
    const uint64_t offset = get_u64(rep->row(i) + kKeyBytes), bytes = get_u64(rep->row(i) + kKeyBytes + 8);
    if (offset > rep->bytes || bytes > rep->bytes - offset)
      return corrupt("row " + std::to_string(i) + " points past its end");
    if (i > 0 && rep->key(i - 1) >= rep->key(i)) return corrupt("its index is not sorted");
  }
  Pack p;
  p.rep_ = std::move(rep);
  return p;
}

Result<Binary> Pack::find(const std::string& key) const {
  size_t low = 0, high = rep_->count;
  while (low < high) {
    const size_t mid = (low + high) / 2;
    if (rep_->key(mid) < key) low = mid + 1;
    else high = mid;
  }
  if (low == rep_->count || rep_->key(low) != key)
    return Status(Code::kNotFound, "pack " + rep_->path + " has no kernel " + key);
  const char* row = rep_->row(low) + kKeyBytes;
  const std::string_view bytes(rep_->data + get_u64(row), get_u64(row + 8));
  if (!matches(bytes, row + 16))
    return Status(Code::kCorruptData,
                  "pack " + rep_->path + ": the digest of kernel " + key + " does not match; reinstall it");
  return parse_binary(bytes);
}

std::vector<std::string> Pack::keys() const {
  std::vector<std::string> all;
  for (size_t i = 0; i < rep_->count; ++i) all.emplace_back(rep_->key(i));
  return all;
}

const std::string& Pack::path() const { return rep_->path; }

Status write_pack(const std::string& path, std::span<const std::pair<std::string, BinaryPtr>> binaries) {
  std::vector<const std::pair<std::string, BinaryPtr>*> sorted;
  for (const auto& b : binaries) sorted.push_back(&b);
  std::sort(sorted.begin(), sorted.end(), [](const auto* a, const auto* b) { return a->first < b->first; });
  for (size_t i = 0; i < sorted.size(); ++i) {
    const std::string& key = sorted[i]->first;
    if (key.size() != kKeyBytes || key.find_first_not_of("0123456789abcdef") != std::string::npos)
      return Status(Code::kInvalidArgument, "pack key \"" + key + "\": 64 lower-case hex digits are wanted");
    if (i > 0 && key == sorted[i - 1]->first) return Status(Code::kInvalidArgument, "pack key " + key + " comes twice");
  }
  // Digests take most of the time; some threads, for they also wait for fresh pages.
  std::vector<std::string> texts(sorted.size());
  std::vector<Digest> digests(sorted.size());
  std::atomic<size_t> next{0};
  const auto worker = [&] {
    for (size_t i = next++; i < sorted.size(); i = next++)
      texts[i] = serialize(*sorted[i]->second), digests[i] = sha256(texts[i]);
  };
  std::vector<std::thread> threads;
  for (size_t n =
           std::min({size_t{8}, size_t{std::max(1u, std::thread::hardware_concurrency())}, sorted.size() / 16 + 1});
       n > 1; --n)
    threads.emplace_back(worker);
  worker();
  for (std::thread& t : threads) t.join();

  std::string index;
  uint64_t offset = kHead + sorted.size() * kRow;
  for (size_t i = 0; i < sorted.size(); ++i) {
    index += sorted[i]->first;
    put_u64(&index, offset);
    put_u64(&index, texts[i].size());
    index.append(reinterpret_cast<const char*>(digests[i].data()), digests[i].size());
    offset += texts[i].size();
  }
  std::string head(kMagic, 8);
  put_u64(&head, sorted.size());
  put_digest(&head, index);
  head += index;

  std::vector<std::string_view> parts{head};
  parts.insert(parts.end(), texts.begin(), texts.end());
  return write_whole(AT_FDCWD, path, parts).with_context("pack " + path);
}

}  // namespace vivace::jit
