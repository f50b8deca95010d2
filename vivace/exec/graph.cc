#include "vivace/exec/graph.h"

#include <algorithm>
#include <utility>

#include "vivace/base/check.h"

namespace vivace::exec {
namespace {

std::string text(ShapeKey key) { return strf("0x%llx", static_cast<unsigned long long>(key.value)); }

template <class Variants>
auto place_of(Variants& variants, ShapeKey key) {
  return std::lower_bound(variants.begin(), variants.end(), key, [](const auto& v, ShapeKey k) { return v.key < k; });
}

template <class Variants>
std::string list(const Variants& variants) {
  constexpr size_t kShown = 16;
  if (variants.empty()) return "none";
  std::string s;
  for (size_t i = 0; i < variants.size() && i < kShown; ++i) s += (i ? ", " : "") + text(variants[i].key);
  if (variants.size() > kShown) s += strf(" and %zu more", variants.size() - kShown);
  return s;
}

}  // namespace

Graph::Graph(std::string name, size_t bound) : name_(std::move(name)), bound_(bound) {
  variants_.reserve(std::min<size_t>(bound_, 1024));
}

const Graph::Variant* Graph::find(ShapeKey key) const {
  const auto it = place_of(variants_, key);
  return it != variants_.end() && it->key == key ? &*it : nullptr;
}

Status Graph::no_variant(ShapeKey key) const {
  return Status(Code::kNoVariant,
                "graph " + name_ + " has no variant " + text(key) + "; captured keys: " + list(variants_));
}

Status Graph::admit(ShapeKey key) const {
  if (const Variant* v = find(key)) {
    if (v->pins == 0) return {};
    return Status(Code::kFailedPrecondition,
                  strf("graph %s: variant %s has %u pins; unpin it before it is captured again", name_.c_str(),
                       text(key).c_str(), v->pins));
  }
  if (variants_.size() < bound_) return {};
  return Status(Code::kLimitExceeded,
                strf("graph %s: variant %s would be number %zu of at most %zu; evict one, or give the graph a larger "
                     "bound; captured keys: %s",
                     name_.c_str(), text(key).c_str(), variants_.size() + 1, bound_, list(variants_).c_str()));
}

Status Graph::capture(ShapeKey key, Stream& stream, const std::function<Status(Stream&)>& fn) {
  if (!fn)
    return Status(Code::kInvalidArgument, "graph " + name_ + ": capture of " + text(key) + " without a function");
  VV_TRY(admit(key));
  const std::string context = "graph " + name_ + ": capture of " + text(key);
  VV_TRY(stream.begin_capture().with_context(context));
  // Whatever `fn` throws, even what an allocation does: the stream must not stay capturing.
  struct Ended {
    Stream* of;
    ~Ended() {
      if (of != nullptr && of->capturing()) static_cast<void>(of->end_capture());
    }
  } ended{&stream};
  Status recorded = fn(stream);
  ended.of = nullptr;
  if (!stream.capturing() && recorded.ok())
    return Status(Code::kFailedPrecondition, context + ": the function ended the capture itself");
  auto executable = stream.end_capture();  // also after an error: the stream must not stay capturing
  if (!recorded.ok()) return std::move(recorded).with_context(context);
  if (!executable.ok()) return std::move(executable).status().with_context(context);
  return adopt(key, std::move(executable).value());
}

Status Graph::adopt(ShapeKey key, std::unique_ptr<Executable> executable) {
  if (executable == nullptr)
    return Status(Code::kInvalidArgument, "graph " + name_ + ": adopt " + text(key) + ": null executable");
  VV_TRY(admit(key));
  auto it = place_of(variants_, key);
  if (it == variants_.end() || it->key != key) it = variants_.insert(it, Variant{key, 0, 0, nullptr});
  it->executable = std::move(executable);
  it->used = ++clock_;
  return {};
}

Status Graph::replay(ShapeKey key, Stream& stream) {
  Variant* v = find(key);
  if (v == nullptr) [[unlikely]] return no_variant(key);
  v->used = ++clock_;
  return stream.replay(*v->executable);
}

Status Graph::pin(ShapeKey key) {
  Variant* v = find(key);
  if (v == nullptr) return no_variant(key);
  ++v->pins;
  return {};
}

Status Graph::unpin(ShapeKey key) {
  Variant* v = find(key);
  if (v == nullptr) return no_variant(key);
  if (v->pins == 0)
    return Status(Code::kFailedPrecondition, "graph " + name_ + ": variant " + text(key) + " is not pinned");
  --v->pins;
  return {};
}

Status Graph::evict(ShapeKey key) {
  const Variant* v = find(key);
  if (v == nullptr) return no_variant(key);
  if (v->pins != 0)
    return Status(Code::kFailedPrecondition, strf("graph %s: variant %s has %u pins; unpin it before it is evicted",
                                                  name_.c_str(), text(key).c_str(), v->pins));
  variants_.erase(variants_.begin() + (v - variants_.data()));
  return {};
}

Result<ShapeKey> Graph::evict_lru() {
  const Variant* oldest = nullptr;
  for (const Variant& v : variants_)
    if (v.pins == 0 && (oldest == nullptr || v.used < oldest->used)) oldest = &v;
  if (oldest == nullptr)
    return Status(Code::kFailedPrecondition,
                  strf("graph %s: nothing to evict: %zu variants, all pinned", name_.c_str(), variants_.size()));
  const ShapeKey key = oldest->key;
  VV_TRY(evict(key));
  return key;
}

bool Graph::pinned(ShapeKey key) const {
  const Variant* v = find(key);
  return v != nullptr && v->pins != 0;
}

Executable* Graph::executable(ShapeKey key) {
  Variant* v = find(key);
  return v == nullptr ? nullptr : v->executable.get();
}

std::vector<ShapeKey> Graph::keys() const {
  std::vector<ShapeKey> out;
  for (const Variant& v : variants_) out.push_back(v.key);
  return out;
}

}  // namespace vivace::exec
