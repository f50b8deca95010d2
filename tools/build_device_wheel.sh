#!/usr/bin/env bash
# Collects in one folder what a GPU machine without a package source needs to run tests and benchmarks.
# Usage: tools/build_device_wheel.sh [--tree] [PYTHON [FOLDER]]: an interpreter of the GPU machine's version
# (default python3.12); default folder build/carry. Makes FOLDER/src (the last commit's files, from which the
# rest is built; --tree: the files as they lie here), FOLDER/wheel (Vivace), FOLDER/wheels (what tests and server
# import beyond torch and NumPy), FOLDER/vivace_tests (the C++ tests) and FOLDER/commit. On the other machine
# FOLDER/src/tools/device_run.py runs them.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
files() { git archive "$commit" -- . ':!*/results' ':!docs/design' ':!lab'; }
commit=$(git rev-parse HEAD)
if [ "${1:-}" = --tree ]; then
  shift
  commit=dirty
  files() { git ls-files -z -co --exclude-standard -- . ':!*/results' ':!docs/design' ':!lab' | tar -c --null --ignore-failed-read -T -; }
fi
python=${1:-python3.12} out=$(realpath -m "${2:-build/carry}") tree=$PWD/build/carry-tree
mkdir -p "$out/wheel"
rm -rf "$out/src" && mkdir "$out/src"
# New times: a build tool must not take an older commit's file for unchanged; ccache finds what is.
files | tar -x -m -C "$out/src"
[ -x build/carry-venv/bin/pip ] || { "$python" -m venv build/carry-venv && build/carry-venv/bin/pip install -q "scikit-build-core>=1.1,<2" "nanobind>=3.1,<4"; }

# One build tree for the module and the C++ tests: the core is compiled once. libstdc++ goes inside, for
# the other machine's may be older.
CMAKE_BUILD_PARALLEL_LEVEL=$(nproc) build/carry-venv/bin/pip wheel "$out/src" -q --no-build-isolation --no-deps -w "$out/wheel" -C build-dir="$tree" \
  -C cmake.define.VV_TESTS=ON -C "cmake.define.CMAKE_EXE_LINKER_FLAGS=-static-libstdc++ -static-libgcc"
cmake --build "$tree" --target vivace_tests -j "$(nproc)"
strip -o "$out/vivace_tests" "$tree/tests/vivace_tests"

# Of the tests; and what vivace serve needs beyond what such a machine has (anyio, click, h11).
pins=$("$python" -c '
import re, tomllib
extras = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]
tests = ("pytest", "pytest-timeout", "ml_dtypes", "gguf")
print(*(r for r in extras["test"] if re.match(r"[\w-]+", r)[0] in tests), *extras["serve"], sep="\n")')
for pin in $pins; do
  name=${pin%%[<>=]*} version='*'
  [[ $pin == *==* ]] && version=${pin##*==}
  compgen -G "$out/wheels/${name//-/_}-$version-*.whl" >/dev/null && continue
  build/carry-venv/bin/pip download -q --no-deps --only-binary=:all: -d "$out/wheels" "$pin"
done
tools/stale_rows --out "$out/stale.json" >/dev/null
echo "$commit" >"$out/commit"
du -sh "$out"
