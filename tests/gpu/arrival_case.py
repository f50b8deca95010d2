"""Four small kernels for test_racecheck.py: a warp reads shared memory, meets at __syncwarp() and arrives at a barrier there,
by every lane or by one for all; another warp waits at it and writes what was read."""
import torch

SOURCE = r"""
extern "C" __global__ void NAME(int* out) {
  __shared__ __align__(128) unsigned slot[128];
  __shared__ unsigned long long barrier;
  const int lane = threadIdx.x % 32;
  const unsigned at = (unsigned)__cvta_generic_to_shared(&barrier), from = (unsigned)__cvta_generic_to_shared(slot);
  for (int i = threadIdx.x; i < 128; i += 64) slot[i] = i;
  if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(at), "r"(ALL ? 32 : 1) : "memory");
  __syncthreads();
  volatile unsigned* own = slot + 4 * lane;
  if (threadIdx.x < 32) {
    unsigned r[4];
    if (MATRIX) asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(from + lane * 16) : "memory");
    else for (int i = 0; i < 4; ++i) r[i] = own[i];
    __syncwarp();
    if (ALL || lane == 0) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(at) : "memory");
    out[lane] = r[0] + r[1] + r[2] + r[3];
  } else {
    unsigned done;
    do asm volatile("{.reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0; selp.u32 %0, 1, 0, p;}" : "=r"(done) : "r"(at) : "memory");
    while (!done);
    for (int i = 0; i < 4; ++i) own[i] = 7;
  }
}
"""


def main():
    out = torch.empty(32, dtype=torch.int32, device="cuda")
    for name, matrix, every in (("loads_one", 0, 0), ("loads_all", 0, 1), ("matrix_one", 1, 0), ("matrix_all", 1, 1)):
        kernel = torch.cuda._compile_kernel(SOURCE.replace("NAME", name).replace("MATRIX", str(matrix)).replace("ALL", str(every)), name)
        kernel(grid=(1, 1, 1), block=(64, 1, 1), args=[out])
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
