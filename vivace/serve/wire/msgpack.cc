#include "vivace/serve/wire/msgpack.h"

#include <bit>
#include <cstring>
#include <limits>

#include "vivace/base/check.h"
#include "vivace/base/printable.h"
#include "vivace/engine/checkpoint/parse.h"

namespace vivace::serve::wire {
namespace {

using Kind = Value::Kind;

struct Named {
  DType dtype;
  const char* name;
};
constexpr Named kArrays[] = {{DType::u8, "|u1"},  {DType::f32, "<f4"}, {DType::f64, "<f8"},
                             {DType::f16, "<f2"}, {DType::i64, "<i8"}, {DType::i32, "<i4"},
                             {DType::i16, "<i2"}, {DType::i8, "|i1"},  {DType::boolean, "|b1"}};

uint64_t big_endian(const std::byte* p, int bytes) {
  uint64_t v = 0;
  for (int i = 0; i < bytes; ++i) v = v << 8 | static_cast<uint64_t>(p[i]);
  return v;
}

std::string_view view(const std::byte* p, size_t n) { return {reinterpret_cast<const char*>(p), n}; }

std::string shown(std::string_view name) { return strf("'%s'", printable(name.substr(0, 60)).c_str()); }

}  // namespace

const char* numpy_name(DType dtype) {
  for (const Named& n : kArrays)
    if (n.dtype == dtype) return n.name;
  return nullptr;
}

Status Message::error(Code code, const std::string& what) const {
  return Status(code, strf("msgpack: byte %zu: %s", at_, what.c_str()));
}

Status Message::take(uint64_t bytes, const char* what, const std::byte** from) {
  if (bytes > bytes_.size() - at_)
    return error(Code::kCorruptData, strf("%s: %llu bytes wanted, %zu are left", what,
                                          static_cast<unsigned long long>(bytes), bytes_.size() - at_));
  *from = bytes_.data() + at_;
  at_ += bytes;
  return {};
}

Status Message::number_of(int bytes, uint64_t* out) {
  const std::byte* p = nullptr;
  VV_TRY(take(static_cast<uint64_t>(bytes), "a number", &p));
  *out = big_endian(p, bytes);
  return {};
}

Status Message::read(std::span<const std::byte> bytes) {
  bytes_ = bytes, at_ = 0;
  values_.clear();
  if (bytes.size() > kMostMessage)
    return error(Code::kLimitExceeded, strf("%zu bytes, at most %zu are read", bytes.size(), kMostMessage));
  VV_TRY(value(0));
  if (at_ != bytes.size())
    return error(Code::kCorruptData, strf("%zu bytes behind the message's end", bytes.size() - at_));
  return {};
}

Status Message::value(int depth) {
  if (depth > kMostDepth) return error(Code::kLimitExceeded, strf("nested deeper than %d", kMostDepth));
  if (values_.size() == kMostValues) return error(Code::kLimitExceeded, strf("more than %u values", kMostValues));
  const auto at = static_cast<uint32_t>(values_.size());
  values_.emplace_back();
  const std::byte* p = nullptr;
  VV_TRY(take(1, "a value", &p));
  const auto type = static_cast<uint8_t>(*p);
  Kind kind = Kind::nil;
  uint64_t n = 0;
  const auto set = [&](Kind k) -> Value& {
    Value& v = values_[at];
    v.kind = k;
    return v;
  };
  if (type <= 0x7f) set(Kind::whole).whole = type;
  else if (type >= 0xe0) set(Kind::whole).whole = static_cast<int8_t>(type);
  else if (type == 0xc0) set(Kind::nil);
  else if (type == 0xc2 || type == 0xc3) set(Kind::flag).flag = type == 0xc3;
  else if (type == 0xca || type == 0xcb) {
    VV_TRY(number_of(type == 0xca ? 4 : 8, &n));
    set(Kind::number).number =
        type == 0xca ? static_cast<double>(std::bit_cast<float>(static_cast<uint32_t>(n))) : std::bit_cast<double>(n);
  } else if (type >= 0xcc && type <= 0xcf) {
    VV_TRY(number_of(1 << (type - 0xcc), &n));
    Value& v = set(Kind::whole);
    v.whole = static_cast<int64_t>(n);
    v.above = n > static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
  } else if (type >= 0xd0 && type <= 0xd3) {
    const int bytes = 1 << (type - 0xd0);
    VV_TRY(number_of(bytes, &n));
    const int spare = 64 - 8 * bytes;
    set(Kind::whole).whole = static_cast<int64_t>(n << spare) >> spare;
  } else {
    if (type <= 0x8f) kind = Kind::map, n = type & 0x0f;
    else if (type <= 0x9f) kind = Kind::list, n = type & 0x0f;
    else if (type <= 0xbf) kind = Kind::text, n = type & 0x1f;
    else if (type >= 0xc4 && type <= 0xc6) { kind = Kind::bytes; VV_TRY(number_of(1 << (type - 0xc4), &n)); }
    else if (type >= 0xd9 && type <= 0xdb) { kind = Kind::text; VV_TRY(number_of(1 << (type - 0xd9), &n)); }
    else if (type == 0xdc || type == 0xdd) { kind = Kind::list; VV_TRY(number_of(type == 0xdc ? 2 : 4, &n)); }
    else if (type == 0xde || type == 0xdf) { kind = Kind::map; VV_TRY(number_of(type == 0xde ? 2 : 4, &n)); }
    else return error(Code::kUnsupported, strf("type 0x%02x: extensions are not read", type));
    Value& v = set(kind);
    if (kind == Kind::text || kind == Kind::bytes) {
      const std::byte* from = nullptr;
      VV_TRY(take(n, kind == Kind::text ? "a text" : "bytes", &from));
      v.text = view(from, n);
      if (kind == Kind::text && !engine::is_utf8(v.text)) return error(Code::kCorruptData, "a text that is no UTF-8");
    } else {
      if (n > kMostEntries)
        return error(Code::kLimitExceeded,
                     strf("%llu entries, at most %u are read", static_cast<unsigned long long>(n), kMostEntries));
      v.count = static_cast<uint32_t>(n);
      VV_TRY(entries(at, kind == Kind::map, depth));
    }
  }
  values_[at].end = static_cast<uint32_t>(values_.size());
  return {};
}

Status Message::entries(uint32_t at, bool map, int depth) {
  const uint32_t count = values_[at].count;
  bool special = false;
  for (uint32_t i = 0; i < count; ++i) {
    if (map) {
      const auto key = static_cast<uint32_t>(values_.size());
      VV_TRY(value(depth + 1));
      const Value& k = values_[key];
      if (k.kind != Kind::text && k.kind != Kind::bytes) return error(Code::kCorruptData, "a map's key is no text");
      for (uint32_t e = at + 1, seen = 0; seen < i; ++seen, e = values_[e + 1].end)
        if (values_[e].kind == k.kind && values_[e].text == k.text)
          return error(Code::kCorruptData, "the key " + shown(k.text) + " comes twice");
      special = special || (k.kind == Kind::bytes && k.text.starts_with("__np")) ||
                (k.kind == Kind::bytes && k.text == "__ndarray__");
    }
    VV_TRY(value(depth + 1));
  }
  return special ? as_array(at) : Status();
}

/// The map at `at`, whose entries are behind it and the last, becomes one array or number.
Status Message::as_array(uint32_t at) {
  const Value *mark = nullptr, *data = nullptr, *dtype = nullptr, *shape = nullptr;
  uint32_t shape_at = 0;
  bool generic = false;
  for (uint32_t e = at + 1, i = 0; i < values_[at].count; ++i, e = values_[e + 1].end) {
    const Value &key = values_[e], &v = values_[e + 1];
    if (key.kind != Kind::bytes)
      return error(Code::kUnsupported, "an array's keys are bytes, got the text " + shown(key.text));
    if (key.text == "__ndarray__") mark = &v;
    else if (key.text == "__npgeneric__") mark = &v, generic = true;
    else if (key.text == "data") data = &v;
    else if (key.text == "dtype") dtype = &v;
    else if (key.text == "shape") shape = &v, shape_at = e + 1;
    else return error(Code::kUnsupported, "an array has no key " + shown(key.text));
  }
  if (mark == nullptr || mark->kind != Kind::flag || !mark->flag || data == nullptr || dtype == nullptr ||
      dtype->kind != Kind::text || (shape == nullptr) != generic)
    return error(Code::kCorruptData,
                 "an array is a map of __ndarray__ true, data, dtype and shape, a number one of __npgeneric__ true, "
                 "data and dtype");
  Value v;
  if (generic) {
    if (data->kind != Kind::whole && data->kind != Kind::number && data->kind != Kind::flag)
      return error(Code::kUnsupported, "a number's data is a number, true or false");
    v = *data;
  } else {
    const Named* found = nullptr;
    for (const Named& n : kArrays)
      if (dtype->text == n.name) found = &n;
    if (found == nullptr)
      return error(Code::kUnsupported,
                   "dtype " + shown(dtype->text) + ": wanted one of |u1, <f4, <f8, <f2, <i8, <i4, <i2, |i1, |b1");
    if (data->kind != Kind::bytes || shape->kind != Kind::list)
      return error(Code::kCorruptData, "an array's data are bytes and its shape a list");
    if (shape->count > HostArray::kMostRank)
      return error(Code::kUnsupported,
                   strf("an array of %u axes, at most %d are read", shape->count, HostArray::kMostRank));
    v.kind = Kind::array;
    v.array = {reinterpret_cast<const std::byte*>(data->text.data()), found->dtype, static_cast<int>(shape->count), {}};
    uint64_t bytes = static_cast<uint64_t>(info(found->dtype).bytes);
    for (uint32_t i = 0; i < shape->count; ++i) {
      const Value& n = values_[shape_at + 1 + i];
      if (n.kind != Kind::whole || n.above || n.whole < 0 || n.whole > static_cast<int64_t>(kMostMessage))
        return error(Code::kCorruptData, "an array's shape is of whole numbers that fit in a message");
      v.array.shape[i] = n.whole;
      if (__builtin_mul_overflow(bytes, static_cast<uint64_t>(n.whole), &bytes))
        return error(Code::kCorruptData, "an array's shape does not fit in a message");
    }
    if (bytes != data->text.size())
      return error(Code::kCorruptData, strf("an array of %llu bytes by its shape has %zu",
                                            static_cast<unsigned long long>(bytes), data->text.size()));
  }
  values_.resize(at + 1);
  values_[at] = v;
  return {};
}

uint32_t Message::find(uint32_t map, std::string_view key) const {
  if (values_[map].kind != Kind::map) return 0;
  for (uint32_t e = map + 1, i = 0; i < values_[map].count; ++i, e = values_[e + 1].end)
    if (values_[e].kind == Kind::text && values_[e].text == key) return e + 1;
  return 0;
}

void Writer::append(const void* data, size_t bytes) {
  const auto* const p = static_cast<const std::byte*>(data);
  out_->insert(out_->end(), p, p + bytes);
}

void Writer::big_endian(uint64_t v, int bytes) {
  for (int i = bytes - 1; i >= 0; --i) byte(static_cast<uint8_t>(v >> (8 * i)));
}

void Writer::head(uint32_t count, uint8_t fixed, uint32_t below, uint8_t wide) {
  if (count < below) return byte(static_cast<uint8_t>(fixed | count));
  const bool more = count > 0xffff;
  byte(static_cast<uint8_t>(wide + (more ? 1 : 0)));
  big_endian(count, more ? 4 : 2);
}

void Writer::whole(int64_t v) {
  if (v >= 0) return whole_u64(static_cast<uint64_t>(v));
  if (v >= -32) return byte(static_cast<uint8_t>(v));
  const int size = v >= INT8_MIN ? 0 : v >= INT16_MIN ? 1 : v >= INT32_MIN ? 2 : 3;
  byte(static_cast<uint8_t>(0xd0 + size));
  big_endian(static_cast<uint64_t>(v), 1 << size);
}

void Writer::whole_u64(uint64_t v) {
  if (v <= 0x7f) return byte(static_cast<uint8_t>(v));
  const int size = v <= UINT8_MAX ? 0 : v <= UINT16_MAX ? 1 : v <= UINT32_MAX ? 2 : 3;
  byte(static_cast<uint8_t>(0xcc + size));
  big_endian(v, 1 << size);
}

void Writer::number(double v) {
  byte(0xcb);
  big_endian(std::bit_cast<uint64_t>(v), 8);
}

void Writer::text(std::string_view v) {
  if (v.size() >= 32 && v.size() <= 0xff) byte(0xd9), byte(static_cast<uint8_t>(v.size()));
  else head(static_cast<uint32_t>(v.size()), 0xa0, 32, 0xda);
  append(v.data(), v.size());
}

void Writer::bytes(std::string_view v) {
  const int size = v.size() <= 0xff ? 0 : v.size() <= 0xffff ? 1 : 2;
  byte(static_cast<uint8_t>(0xc4 + size));
  big_endian(v.size(), 1 << size);
  append(v.data(), v.size());
}

void Writer::array(DType dtype, std::span<const int64_t> shape, const void* data) {
  map(4);
  bytes("__ndarray__");
  flag(true);
  bytes("data");
  int64_t elements = 1;
  for (const int64_t n : shape) elements *= n;
  bytes({static_cast<const char*>(data), static_cast<size_t>(elements * info(dtype).bytes)});
  bytes("dtype");
  text(numpy_name(dtype));
  bytes("shape");
  list(static_cast<uint32_t>(shape.size()));
  for (const int64_t n : shape) whole(n);
}

}  // namespace vivace::serve::wire
