#!/usr/bin/env bash
# Builds the experiments and runs them, each in a process of its own, so that a trap of one leaves the others alone.
# Usage: lab/persistent_policy/run.sh [FOLDER [hops|chain]]; python3 with Vivace installed adds the launched chain.
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.."
out=${1:-/tmp/persistent_policy} what=${2:-hops chain}
mkdir -p "$out"
for name in $what; do
  nvcc -std=c++20 -O2 -gencode=arch=compute_90a,code=sm_90a -I. "lab/persistent_policy/$name.cu" -o "$out/$name" &
done
wait
for name in $what; do
  if [ "$name" = hops ]; then
    for x in x10 x1 x4 x3 x2 x5; do timeout 20 "$out/hops" "$x" || echo "$x ended with $?"; done
  else
    timeout 90 "$out/chain" || echo "x6 ended with $?"
    timeout 90 python3 lab/persistent_policy/launched.py 2>&1 | tail -8
  fi
done | tee "$out/table.txt"
