"""Four small kernels for test_racecheck.py: two groups of four warps pass a named barrier of their own some
times, then write shared memory, meet, and read what the other group wrote. What the tool says depends on which group
comes first: in every fifth block none waits, in the others one does, before it writes or before it reads."""
import torch

SOURCE = r"""
__device__ void late(int block, int step) {
  if (static_cast<int>(blockIdx.x) % 5 == 2 * step + block) __nanosleep(200000);
}
extern "C" __global__ void NAME(const int* turns, int most, int* out) {
  __shared__ int s[256];
  const int group = threadIdx.x / 128;
  for (int i = 0; i < turns[group]; ++i) asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
  for (int i = turns[group]; i < most; ++i) asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
  late(group, 0);
  s[threadIdx.x] = threadIdx.x;
  if (MEET) __syncthreads();
  late(group, 1);
  out[threadIdx.x] = s[threadIdx.x ^ 128];
}
"""


def main():
    out = torch.empty(256, dtype=torch.int32, device="cuda")
    for name, meet, turns, most in (("equal", 1, (2, 2), 0), ("unequal", 1, (1, 2), 0), ("evened", 1, (1, 2), 2), ("racing", 0, (2, 2), 0)):
        kernel = torch.cuda._compile_kernel(SOURCE.replace("NAME", name).replace("MEET", str(meet)), name)
        kernel(grid=(40, 1, 1), block=(256, 1, 1), args=[torch.tensor(turns, dtype=torch.int32, device="cuda"), most, out])
    torch.cuda.synchronize()


if __name__ == "__main__":
    main()
