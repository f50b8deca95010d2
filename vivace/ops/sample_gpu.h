// How sample and argmax run on a GPU: one kernel, of which argmax is the greedy tactic.
#pragma once
#include "vivace/kernels/sampling/sample.h"
#include "vivace/ops/gpu.h"

namespace vivace::ops {

struct SampleGpu {
  static constexpr const char* kHeader = "vivace/kernels/sampling/sample.cuh";
  using Policy = kernels::SamplePolicy;
  struct Key {
    DType dtype;
    Policy p;
    bool operator==(const Key&) const = default;
  };
  static constexpr int kSmallVocab = 8192;  // up to here one block a row is quicker than a cluster's barriers

  /// Clusters of small blocks: all 32 of a batch of 32 rows fit on the chip at once, three blocks an SM. H200, 32 x
  /// 152064, top-k 40 and top-p 0.95, us: 256 threads x 8 blocks 18.0; 512 x 8 (15 clusters fit) 33.6.
  /// Few rows leave most of the chip idle: there larger blocks have more of a row on its way at once.
  static constexpr Policy policy(bool cluster, int vec, bool greedy, bool few) {
    return {cluster && !few ? 256 : 512, cluster ? 8 : 1, vec, greedy};
  }
  static constexpr int kFewRows = 8;

  static Result<Key> pick(const kernels::SampleArgs& a, Arch arch) {
    // A token does not depend on the cut of its row; the log-probability's sum does, so that it keeps one.
    const bool few = a.T <= kFewRows && a.logprob == nullptr;
    return Key{a.dtype,
               policy(chip(arch).tma && a.V > kSmallVocab,
                      vectorizable(a.logits, a.logits_stride, a.dtype, 4) ? 4 : 1, a.temperature == nullptr, few)};
  }
  static std::string instance(const Key& k) {
    return kernel_expression("sample<%s, vivace::kernels::SamplePolicy{%d, %d, %d, %s}>", type_name(k.dtype),
                             k.p.threads, k.p.cluster, k.p.vec, k.p.greedy ? "true" : "false");
  }
  static void shape(const kernels::SampleArgs& a, const Key& k, exec::Launch* launch) {
    launch->grid[0] = static_cast<uint32_t>(int64_t{a.T} * k.p.cluster);
    launch->block[0] = static_cast<uint32_t>(k.p.threads);
    launch->cluster = static_cast<uint32_t>(k.p.cluster);
  }
  template <class Visit>
  static void instances(Arch arch, Visit&& visit) {
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const bool cluster : {false, true})
        if (!cluster || chip(arch).tma)
          for (const int vec : {4, 1})
            for (const bool greedy : {true, false})
              for (const bool few : {false, true})
                if (cluster || !few) visit(Key{t, policy(cluster, vec, greedy, few)});
  }
};

}  // namespace vivace::ops
