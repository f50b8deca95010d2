#!/bin/bash
# Builds and runs all of lab/persistent on a machine with nvcc and an H100 or H200: lab/persistent/run.sh [MODEL ...]
cd "$(dirname "$0")" || exit 1
models=${*:-smollm2 qwen3 llama}
declare -A number=([smollm2]=1 [qwen3]=2 [llama]=3)
work=$(mktemp -d)
build() { nvcc -std=c++20 -O2 -gencode=arch=compute_90a,code=sm_90a "$@" || echo "does not build: $*"; }
build hop_bench.cu -o "$work/hop" &
for model in $models; do build -DONLY=${number[$model]} decode_bench.cu -o "$work/$model" & done
wait
timeout 30 "$work/hop"
for model in $models; do
  for mode in check time stamps; do timeout 60 "$work/$model" $model $mode || echo "$model $mode: status $?"; done
done
