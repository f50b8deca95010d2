#include "vivace/jit/binary.h"

#include <cstring>
#include <map>
#include <set>

#include "vivace/base/sha256.h"
#include "vivace/jit/embedded.h"

namespace vivace::jit {
namespace {

constexpr std::string_view kMagic = "VVBIN001";
constexpr const char* kKeyVersion = "vivace-jit-1";  // change it when the fixed compile flags change

void put_u32(std::string* out, size_t v) {
  for (int i = 0; i < 4; ++i) *out += static_cast<char>(v >> (8 * i));
}
void put(std::string* out, std::string_view s) {
  put_u32(out, s.size());
  *out += s;
}

// Reads what put() wrote; after the first short read everything is empty and ok() is false.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  uint32_t u32() {
    const std::string_view b = take(4);
    uint32_t v = 0;
    for (size_t i = 0; i < b.size(); ++i) v |= static_cast<uint32_t>(static_cast<uint8_t>(b[i])) << (8 * i);
    return v;
  }
  std::string text() { return std::string(take(u32())); }
  std::string_view take(size_t n) {
    if (!ok_ || n > rest_.size()) {
      ok_ = false;
      return {};
    }
    const std::string_view r = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return r;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return ok_ && rest_.empty(); }

 private:
  std::string_view rest_;
  bool ok_ = true;
};

// The names between quotes after #include, in comments too: one more file in a key does no harm.
std::vector<std::string> includes_of(std::string_view text) {
  std::vector<std::string> found;
  for (size_t at = text.find("include"); at != std::string_view::npos; at = text.find("include", at + 7)) {
    size_t begin = at + 7;
    while (begin < text.size() && (text[begin] == ' ' || text[begin] == '\t')) ++begin;
    if (begin >= text.size() || (text[begin] != '"' && text[begin] != '<')) continue;
    const size_t end = text.find(text[begin] == '"' ? '"' : '>', begin + 1);
    if (end == std::string_view::npos || end - begin > 256) continue;
    found.emplace_back(text.substr(begin + 1, end - begin - 1));
  }
  return found;
}

struct HeaderFacts {
  Digest digest;
  size_t bytes;
  std::vector<std::string> includes;
};

// Hashed and scanned once a process: a warm start makes hundreds of keys over the same headers.
const std::map<std::string, HeaderFacts>& headers() {
  static const std::map<std::string, HeaderFacts> all = [] {
    std::map<std::string, HeaderFacts> m;
    for (const Header& h : embedded_headers()) m[h.name] = {sha256(h.text), std::strlen(h.text), includes_of(h.text)};
    return m;
  }();
  return all;
}

void collect(const std::vector<std::string>& includes, std::set<std::string>* seen) {
  for (const std::string& include : includes) {
    const auto it = headers().find(include);
    if (it != headers().end() && seen->insert(include).second) collect(it->second.includes, seen);
  }
}

}  // namespace

Result<std::string> Binary::symbol(std::string_view expression) const {
  std::string known;
  for (const auto& [wanted, symbol] : symbols) {
    if (wanted == expression) return symbol;
    known += (known.empty() ? "" : ", ") + wanted;
  }
  return Status(Code::kNotFound, "no kernel " + std::string(expression) + " in this binary; it has: " + known);
}

std::string serialize(const Binary& b) {
  std::string out(kMagic);
  for (const std::string* s : {&b.arch, &b.compiler, &b.warnings, &b.cubin}) put(&out, *s);
  put_u32(&out, b.symbols.size());
  for (const auto& [expression, symbol] : b.symbols) {
    put(&out, expression);
    put(&out, symbol);
  }
  put_u32(&out, b.resources.size());
  for (const Resources& r : b.resources) {
    put(&out, r.symbol);
    for (int v : {r.registers, r.static_smem, r.stack_bytes, r.spill_stores, r.spill_loads})
      put_u32(&out, static_cast<uint32_t>(v));
  }
  return out;
}

Result<Binary> parse_binary(std::string_view bytes) {
  Reader in(bytes);
  if (in.take(kMagic.size()) != kMagic) return Status(Code::kCorruptData, "not a Vivace binary: wrong magic");
  Binary b;
  for (std::string* s : {&b.arch, &b.compiler, &b.warnings, &b.cubin}) *s = in.text();
  // Counts are not trusted: each turn of a loop needs bytes that are really there.
  for (uint32_t n = in.u32(); n > 0 && in.ok(); --n) {
    std::string expression = in.text();
    b.symbols.emplace_back(std::move(expression), in.text());
  }
  for (uint32_t n = in.u32(); n > 0 && in.ok(); --n) {
    Resources r;
    r.symbol = in.text();
    for (int* v : {&r.registers, &r.static_smem, &r.stack_bytes, &r.spill_stores, &r.spill_loads})
      *v = static_cast<int>(in.u32());
    b.resources.push_back(std::move(r));
  }
  if (!in.at_end())
    return Status(Code::kCorruptData,
                  strf("a Vivace binary of %zu bytes is cut short or has bytes left over", bytes.size()));
  return b;
}

std::string serialize(const Source& s) {
  std::string out;
  put(&out, s.name);
  put(&out, s.text);
  put_u32(&out, static_cast<size_t>(s.arch));
  for (const auto* list : {&s.expressions, &s.flags}) {
    put_u32(&out, list->size());
    for (const std::string& t : *list) put(&out, t);
  }
  return out;
}

Result<Source> parse_source(std::string_view bytes) {
  Reader in(bytes);
  Source s;
  s.name = in.text(), s.text = in.text(), s.arch = static_cast<Arch>(in.u32());
  for (auto* list : {&s.expressions, &s.flags})
    for (uint32_t n = in.u32(); n > 0 && in.ok(); --n) list->push_back(in.text());
  if (!in.at_end())
    return Status(Code::kCorruptData, strf("a source of %zu bytes is cut short or has bytes left over", bytes.size()));
  return s;
}

std::string cache_key(const Source& source) {
  // Lengths go in before texts, so that no two different sources give the same stream of bytes.
  std::string all;
  put(&all, kKeyVersion);
  put(&all, name(source.arch));
  put(&all, source.text);
  for (const auto* list : {&source.expressions, &source.flags}) {
    put_u32(&all, list->size());
    for (const std::string& s : *list) put(&all, s);
  }
  std::set<std::string> used;
  collect(includes_of(source.text), &used);
  for (const std::string& h : used) {
    put(&all, h);
    const Digest& d = headers().at(h).digest;
    all.append(reinterpret_cast<const char*>(d.data()), d.size());
  }
  return hex(sha256(all));
}

size_t included_bytes(const Source& source) {
  std::set<std::string> used;
  collect(includes_of(source.text), &used);
  size_t bytes = 0;
  for (const std::string& h : used) bytes += headers().at(h).bytes;
  return bytes;
}

}  // namespace vivace::jit
