#include "vivace/engine/arena.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace vivace::engine {

namespace {
constexpr int64_t kAlign = 256;  // the strictest of cache line, AVX-512 and TMA
}

Arena::~Arena() {
  if (base_ != nullptr) munmap(base_, static_cast<size_t>(bytes_));
}

void Arena::declare(std::string name, DType dtype, Shape shape, Tensor* view) {
  const Tensor t = tensor(nullptr, dtype, shape);
  regions_.push_back({std::move(name), t, view, bytes_});
  bytes_ += (t.span_bytes() + kAlign - 1) / kAlign * kAlign;
}

Status Arena::commit() {
  if (base_ != nullptr) return Status(Code::kFailedPrecondition, "arena: committed already; it cannot grow");
  if (bytes_ == 0) return {};
  void* p = mmap(nullptr, static_cast<size_t>(bytes_), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (p == MAP_FAILED)
    return Status(Code::kOutOfMemory, strf("arena: cannot reserve %ld bytes: %s; lower context or max_batch", static_cast<long>(bytes_), std::strerror(errno)));
  base_ = p;
  for (Region& r : regions_) {
    r.view.data = static_cast<char*>(p) + r.offset;
    *r.target = r.view;
  }
  return {};
}

std::vector<MemoryLine> Arena::lines() const {
  std::vector<MemoryLine> lines;
  for (const Region& r : regions_) lines.push_back({r.name, r.view.span_bytes()});
  return lines;
}

}  // namespace vivace::engine
