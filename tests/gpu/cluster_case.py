"""Four small kernels for test_racecheck.py: two blocks of a cluster fill their shared memory, by stores or by copies that they wait for,
and then write to the other's, behind the cluster's barrier or without it."""
import torch

SOURCE = r"""
#define MEET asm volatile("barrier.cluster.arrive.release.aligned;\n\tbarrier.cluster.wait.acquire.aligned;" ::: "memory")
extern "C" __global__ void __cluster_dims__(2, 1, 1) NAME(const int4* in, int* out) {
  __shared__ int4 memory[256];
  unsigned rank, other;
  const unsigned at = (unsigned)__cvta_generic_to_shared(memory + threadIdx.x);
  asm("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(other) : "r"(at), "r"(rank ^ 1));
  MEET;  // both blocks run
  if (COPY) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n\tcp.async.commit_group;\n\tcp.async.wait_group 0;" ::"r"(at), "l"(in + threadIdx.x) : "memory");
  else asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(at), "r"(7) : "memory");
  if (ORDERED) MEET;
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(other), "r"(rank) : "memory");
  MEET;
  out[blockIdx.x * 256 + threadIdx.x] = memory[threadIdx.x].x;
}
"""


def main():
    data, out = (torch.zeros(n, dtype=torch.int32, device="cuda") for n in (4 * 256, 128 * 256))
    for name, copy, ordered in (("stores", 0, 1), ("stores_racing", 0, 0), ("copies", 1, 1), ("copies_racing", 1, 0)):
        kernel = torch.cuda._compile_kernel(SOURCE.replace("NAME", name).replace("COPY", str(copy)).replace("ORDERED", str(ordered)), name)
        kernel(grid=(128, 1, 1), block=(256, 1, 1), args=[data, out])
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
