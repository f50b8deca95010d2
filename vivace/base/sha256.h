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
  void block(const uint8_t* p);
  uint32_t state_[8];
  uint64_t total_ = 0;   // bytes
  uint8_t tail_[64];
  size_t tail_bytes_ = 0;
};

Digest sha256(std::string_view bytes);
/// 64 lower-case hex digits.
std::string hex(const Digest& digest);

}  // namespace vivace
