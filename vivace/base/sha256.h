// SHA-256 (FIPS 180-4): content addresses of checkpoints, kernels and caches.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace vivace {

using Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  void update(const void* data, size_t bytes);
  void update(std::string_view text) { update(text.data(), text.size()); }
  /// The digest of everything so far. The object may not be updated after it.
  Digest finish();

 private:
  uint32_t state_[8];
  uint64_t total_ = 0;   // bytes
  uint8_t tail_[64];
  size_t tail_bytes_ = 0;
};

Digest sha256(std::string_view bytes);
namespace detail {
/// Folds `count` blocks of 64 bytes into `state`. The two give the same bits; the second needs the SHA
/// instructions of x86 and is about ten times as fast, which a checkpoint of many GB notices.
void sha256_blocks(uint32_t* state, const uint8_t* p, size_t count);
void sha256_blocks_x86(uint32_t* state, const uint8_t* p, size_t count);
bool has_sha_instructions();
}  // namespace detail

/// 64 lower-case hex digits.
std::string hex(const Digest& digest);

}  // namespace vivace
