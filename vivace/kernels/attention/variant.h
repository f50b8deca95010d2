// What a user's variant of attention brings along, shared by host and device. POD; no toolkit header.
#pragma once
#include "vivace/base/int.h"

namespace vivace::kernels {

/// The tensors and numbers of a variant, byte for byte as its struct Extra lays them out (variant.cuh reads
/// them, ops/attention_variant.cc writes them). Of a call without a variant: AttentionArgs::words().
struct AttentionExtra {
  static constexpr int kBytes = 192;
  alignas(8) unsigned char bytes[kBytes];

#ifdef __CUDACC__
  /// What a hook that takes `const Extra&` receives.
  template <class Extra>
  __device__ operator const Extra&() const {
    static_assert(sizeof(Extra) <= kBytes, "the variant's extra tensors and numbers take more than 192 bytes");
    return *reinterpret_cast<const Extra*>(bytes);
  }
#endif
};

/// A dense tensor of up to three axes as it lies in those bytes.
struct AttentionExtraTensor {
  const void* data;
  int32_t dim[3];  // trailing axes of a tensor with fewer are 1
};

}  // namespace vivace::kernels
