#!/bin/bash
# Builds and runs all of lab/persistent on a machine with nvcc and an H100 or H200: lab/persistent/run.sh [MODEL ...]
cd "$(dirname "$0")" || exit 1
models=${*:-smollm2 qwen3 llama}
variants="plain flights copies canary"
declare -A number=([smollm2]=1 [qwen3]=2 [llama]=3)
declare -A flags=([plain]= [flights]=-DLAB_FLIGHTS=2 [copies]=-DLAB_COPIES=4 [canary]=-DLAB_CANARY=1)
work=$(mktemp -d)
build() { nvcc -std=c++20 -O2 -gencode=arch=compute_90a,code=sm_90a "$@" || echo "does not build: $*"; }
build hop_bench.cu -o "$work/hop" &
for model in $models; do
  for variant in $variants; do
    build -DONLY=${number[$model]} ${flags[$variant]} decode_bench.cu -o "$work/$model-$variant" &
  done
done
wait
timeout 30 "$work/hop"
for model in $models; do
  timeout 60 "$work/$model-plain" $model check || echo "$model check: status $?"
  for variant in $variants; do timeout 40 "$work/$model-$variant" $model time || echo "$model $variant: status $?"; done
  timeout 60 "$work/$model-plain" $model stamps || echo "$model stamps: status $?"
done
