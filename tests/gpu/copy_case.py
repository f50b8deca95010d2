"""A small kernel for test_memcheck.py: a cluster of two blocks, each of which sends itself (own) or the other (peer) 1 KiB
of shared memory by TMA, waits for what it gets and writes it out; `beyond` sends to a place past the other's memory."""
import sys

import torch

SOURCE = r"""
extern "C" __global__ void __cluster_dims__(2, 1, 1) NAME(float* out) {
  __shared__ alignas(128) float from[256];
  __shared__ alignas(128) float to[256];
  __shared__ alignas(8) unsigned long long barrier;
  const unsigned b = (unsigned)__cvta_generic_to_shared(&barrier), t = (unsigned)__cvta_generic_to_shared(to), f = (unsigned)__cvta_generic_to_shared(from);
  const unsigned rank = blockIdx.x, other = PEER ? 1 - rank : rank;
  from[threadIdx.x] = 1000 * rank + threadIdx.x;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(b) : "memory");
  asm volatile("fence.mbarrier_init.release.cluster;\n\tfence.proxy.async.shared::cta;" ::: "memory");
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
  if (threadIdx.x == 0) {
    unsigned there, done;
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 1024;" ::"r"(b) : "memory");
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(t + BEYOND), "r"(other));
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(done) : "r"(b), "r"(other));
    asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], 1024, [%2];" ::"r"(there), "r"(f), "r"(done) : "memory");
  }
  asm volatile("{.reg .pred p; W: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra W;}" ::"r"(b) : "memory");
  out[256 * rank + threadIdx.x] = to[threadIdx.x];
  asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}
"""


def main():
    name = sys.argv[1]
    out = torch.zeros(512, device="cuda")
    kernel = torch.cuda._compile_kernel(SOURCE.replace("NAME", name).replace("PEER", "0" if name == "own" else "1").replace("BEYOND", "(1 << 20)" if name == "beyond" else "0"), name)
    kernel(grid=(2, 1, 1), block=(256, 1, 1), args=[out])
    torch.cuda.synchronize()
    sent = torch.arange(256, device="cuda", dtype=torch.float32)
    want = torch.cat([sent, sent + 1000] if name == "own" else [sent + 1000, sent])
    print("right" if torch.equal(out, want) else "wrong")


if __name__ == "__main__":
    main()
