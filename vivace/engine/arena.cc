#include "vivace/engine/arena.h"

#include "vivace/base/check.h"

namespace vivace::engine {

namespace {
constexpr int64_t kAlign = 256;  // the strictest of cache line, AVX-512 and TMA
}

void Arena::declare(std::string name, DType dtype, Shape shape, Tensor* view) {
  const Tensor t = tensor(nullptr, dtype, shape);
  regions_.push_back({std::move(name), t, view, bytes_});
  bytes_ += (t.span_bytes() + kAlign - 1) / kAlign * kAlign;
}

Status Arena::commit(Runtime& runtime) {
  if (buffer_.data() != nullptr)
    return Status(Code::kFailedPrecondition, name_ + ": committed already; it cannot grow");
  if (bytes_ == 0) return {};
  VV_ASSIGN(buffer_, runtime.reserve(name_, static_cast<size_t>(bytes_)));
  for (Region& r : regions_) {
    r.view.data = static_cast<char*>(buffer_.data()) + r.offset;
    r.view.place = runtime.place();
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
