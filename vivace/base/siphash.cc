#include "vivace/base/siphash.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace vivace {
namespace {

struct State {
  uint64_t a, b, c, d;
  void rounds(int n) {
    for (; n > 0; --n) {
      a += b, c += d;
      b = std::rotl(b, 13) ^ a, d = std::rotl(d, 16) ^ c;
      a = std::rotl(a, 32);
      c += b, a += d;
      b = std::rotl(b, 17) ^ c, d = std::rotl(d, 21) ^ a;
      c = std::rotl(c, 32);
    }
  }
  void word(uint64_t w) {
    d ^= w;
    rounds(2);
    a ^= w;
  }
  uint64_t fold() const { return a ^ b ^ c ^ d; }
};

}  // namespace

Hash128 siphash(const Hash128& key, const void* data, size_t bytes) {
  State s{0x736f6d6570736575u ^ key.lo, 0x646f72616e646f6du ^ key.hi ^ 0xee, 0x6c7967656e657261u ^ key.lo,
          0x7465646279746573u ^ key.hi};
  const auto* at = static_cast<const unsigned char*>(data);
  size_t left = bytes;
  for (; left >= 8; at += 8, left -= 8) {
    uint64_t w;
    std::memcpy(&w, at, 8);
    s.word(w);
  }
  uint64_t last = static_cast<uint64_t>(bytes) << 56;
  for (size_t i = 0; i < left; ++i) last |= static_cast<uint64_t>(at[i]) << (8 * i);
  s.word(last);
  s.c ^= 0xee;
  s.rounds(4);
  Hash128 out{s.fold(), 0};
  s.b ^= 0xdd;
  s.rounds(4);
  out.hi = s.fold();
  return out;
}

Status random_bytes(void* to, size_t bytes) {
  for (auto* at = static_cast<char*>(to); bytes > 0;) {
    const ssize_t got = getrandom(at, bytes, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Status(Code::kIoError, std::string("getrandom: ") + std::strerror(errno));
    at += got, bytes -= static_cast<size_t>(got);
  }
  return {};
}

}  // namespace vivace
