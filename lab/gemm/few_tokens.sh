#!/bin/bash
# Products of one to eight tokens with weights of four bits, on a machine with a GPU and nvcc: lab/gemm/few_tokens.sh OUT [BEFORE]
# BEFORE: a folder with vivace/kernels and vivace/base of another commit, whose kernels are timed beside these.
# OUT gets rows-*.jsonl, and counters.txt of one launch a kind where ncu is there.
set -e
out=$1 before=$2 work=$(mktemp -d)
flags="-std=c++20 -gencode=arch=compute_90a,code=sm_90a"
build() {  # NAME FLAGS...: the bench and a cubin for each format
  local name=$1; shift
  nvcc $flags -O2 "$@" -I. lab/gemm/weight_only_bench.cu -ldl -lcuda -o "$work/bench-$name" &
  for form in NV Q4 I4; do
    nvcc $flags -split-compile=4 -DLAB_$form "$@" -I. -cubin lab/gemm/weight_only_few_kernels.cu -o "$work/$name-$form.cubin" &
  done
  nvcc $flags -split-compile=8 "$@" -I. -cubin lab/gemm/weight_only_kernels.cu -o "$work/$name-all.cubin" &
}
build now
[ -z "$before" ] || build before -I"$before"
wait
for form in NV Q4 I4; do
  for name in now ${before:+before}; do
    echo "== $form, $name"
    "$work/bench-$name" "$work/$name-$form.cubin" "$out/rows-$name-$form.jsonl" nopeer few || echo "failed: $?"
  done
done
for name in now ${before:+before}; do  # up to 64 tokens: wrong values, other bits, and what they take
  echo "== all, $name"
  "$work/bench-$name" "$work/$name-all.cubin" "$out/rows-$name-all.jsonl" nopeer | grep -E "e2m1|wrong|bound|failed" || echo "failed: $?"
done
if command -v ncu >/dev/null && [ -z "$NO_COUNTERS" ]; then
  sections=$(printf -- '--section %s ' SpeedOfLight WarpStateStats SchedulerStats ComputeWorkloadAnalysis MemoryWorkloadAnalysis InstructionStats LaunchStats Occupancy)
  for form in NV Q4; do  # the panel of 6144, one token
    ncu --clock-control none $sections --metrics group:smsp__pcsamp_warp_stall_reasons --launch-skip 3 --launch-count 1 \
      --kernel-name-base mangled -k "regex:ELi2ELi1ELi6144E" \
      "$work/bench-now" "$work/now-$form.cubin" /dev/null nopeer few > "$out/counters-$form.txt" 2>&1 || true
    grep -vE "^==|OPT|INF|^$|Section" "$out/counters-$form.txt" | cut -c1-110 | head -150 || true
  done
fi
