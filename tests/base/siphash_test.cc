#include "vivace/base/siphash.h"

#include <gtest/gtest.h>

#include <vector>

namespace vivace {
namespace {

/// The key and messages of the reference vectors: bytes 0, 1, 2, ...
Hash128 of(size_t bytes) {
  std::vector<unsigned char> message;
  for (size_t i = 0; i < bytes; ++i) message.push_back(static_cast<unsigned char>(i));
  return siphash({0x0706050403020100u, 0x0f0e0d0c0b0a0908u}, message.data(), bytes);
}

TEST(SipHash, KnownAnswers) {
  EXPECT_EQ(of(0), (Hash128{0xe6a825ba047f81a3u, 0x930255c71472f66du}));
  EXPECT_EQ(of(1), (Hash128{0x44af996bd8c187dau, 0x45fc229b11597634u}));
  EXPECT_EQ(of(15), (Hash128{0x11a8b03399e99354u, 0xd9c3cf970fec087eu}));
}

TEST(SipHash, EveryBitOfKeyAndMessageCounts) {
  unsigned char message[24] = {};
  const Hash128 plain = siphash({5, 6}, message, sizeof message);
  for (int bit = 0; bit < 64; ++bit) {
    EXPECT_NE(siphash({5 ^ uint64_t{1} << bit, 6}, message, sizeof message), plain);
    EXPECT_NE(siphash({5, 6 ^ uint64_t{1} << bit}, message, sizeof message), plain);
  }
  for (int bit = 0; bit < 8 * 24; ++bit) {
    message[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
    EXPECT_NE(siphash({5, 6}, message, sizeof message), plain);
    message[bit / 8] ^= static_cast<unsigned char>(1 << bit % 8);
  }
  EXPECT_NE(siphash({5, 6}, message, 23), plain) << "lengths count";
}

TEST(Random, BytesDiffer) {
  Hash128 a, b;
  ASSERT_TRUE(random_bytes(&a, sizeof a).ok());
  ASSERT_TRUE(random_bytes(&b, sizeof b).ok());
  EXPECT_NE(a, b);
}

}  // namespace
}  // namespace vivace
