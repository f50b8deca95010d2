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
  static constexpr int kThreads = 512, kSmallVocab = 8192;  // below, one block a row is quicker than a cluster's barriers
  static constexpr int kStaticSmem = 20 * 1024;             // of the kernel, at most

  /// Shared memory a block may have on the chip.
  static constexpr int smem_limit(Arch arch) {
    if (arch == Arch::sm80 || arch == Arch::sm87) return 163 * 1024;
    return (arch >= Arch::sm90a && arch <= Arch::sm110a ? 227 : 99) * 1024;
  }
  static constexpr uint32_t smem(const Key& k, int V) { return k.p.resident ? static_cast<uint32_t>(k.p.stretch(V)) * 4 : 0; }

  static Result<Key> pick(const kernels::SampleArgs& a, Arch arch) {
    const bool greedy = a.temperature == nullptr;
    Key k{a.dtype, {kThreads, has_clusters(arch) && a.V > kSmallVocab ? 8 : 1, vectorizable(a.logits, a.logits_stride, a.dtype, 4) ? 4 : 1, greedy, !greedy}};
    if (static_cast<int64_t>(smem(k, a.V)) + kStaticSmem > smem_limit(arch)) k.p.resident = false;
    return k;
  }
  static constexpr bool has_clusters(Arch arch) { return arch >= Arch::sm90a; }
  static std::string instance(const Key& k) {
    return kernel_expression("sample<%s, vivace::kernels::SamplePolicy{%d, %d, %d, %s, %s}>", type_name(k.dtype), k.p.threads, k.p.cluster, k.p.vec,
                             k.p.greedy ? "true" : "false", k.p.resident ? "true" : "false");
  }
  static void shape(const kernels::SampleArgs& a, const Key& k, exec::Launch* launch) {
    launch->grid[0] = static_cast<uint32_t>(int64_t{a.T} * k.p.cluster);
    launch->block[0] = static_cast<uint32_t>(k.p.threads);
    launch->cluster = static_cast<uint32_t>(k.p.cluster);
    launch->smem_bytes = smem(k, a.V);
  }
  template <class Visit>
  static void instances(Arch arch, Visit&& visit) {
    for (const DType t : {DType::f32, DType::bf16, DType::f16})
      for (const int cluster : {1, 8}) {
        if (cluster > 1 && !has_clusters(arch)) continue;
        for (const int vec : {4, 1}) {
          visit(Key{t, {kThreads, cluster, vec, true, false}});
          visit(Key{t, {kThreads, cluster, vec, false, true}});
          visit(Key{t, {kThreads, cluster, vec, false, false}});
        }
      }
  }
};

}  // namespace vivace::ops
