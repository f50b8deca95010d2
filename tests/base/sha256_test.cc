#include "vivace/base/sha256.h"

#include <gtest/gtest.h>

namespace vivace {
namespace {

// FIPS 180-4's examples and NIST's long message.
TEST(Sha256, PublishedVectors) {
  EXPECT_EQ(hex(sha256("")), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(hex(sha256("abc")), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(hex(sha256("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(hex(sha256(std::string(1000000, 'a'))), "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(Sha256, PiecesGiveTheSameDigestAsTheWhole) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>(i * 7 + i / 3);
  const Digest whole = sha256(text);
  for (size_t piece : {1u, 3u, 63u, 64u, 65u, 127u, 999u}) {
    Sha256 h;
    for (size_t at = 0; at < text.size(); at += piece) h.update(std::string_view(text).substr(at, piece));
    EXPECT_EQ(h.finish(), whole) << piece;
  }
}

TEST(Sha256, InstructionsGiveTheSameBitsAsPortableCode) {
  if (!detail::has_sha_instructions()) GTEST_SKIP() << "no SHA instructions on this machine";
  std::string text(64 * 9, '\0');
  uint32_t a[8], b[8], x = 1;
  for (int round = 0; round < 100; ++round) {
    for (char& c : text) c = static_cast<char>((x = x * 1664525u + 1013904223u) >> 24);
    for (int i = 0; i < 8; ++i) a[i] = b[i] = (x = x * 1664525u + 1013904223u);
    const size_t count = static_cast<size_t>(round % 10);
    detail::sha256_blocks(a, reinterpret_cast<const uint8_t*>(text.data()), count);
    detail::sha256_blocks_x86(b, reinterpret_cast<const uint8_t*>(text.data()), count);
    for (int i = 0; i < 8; ++i) ASSERT_EQ(a[i], b[i]) << count << " blocks, word " << i;
  }
}

}  // namespace
}  // namespace vivace
