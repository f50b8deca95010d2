#!/usr/bin/env bash
# Installs the build into an empty prefix, builds examples/{c,cpp}/* against it with find_package(vivace),
# runs them, and looks at what the shared library shows.
# Usage: installed_package.sh SOURCE_DIR BUILD_DIR CXX VERSION
set -euo pipefail
source_dir=$1 build_dir=$2 cxx=$3 version=$4
work=$(mktemp -d "$build_dir/installed.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() { echo "installed_package: $*" >&2; exit 1; }

cmake --install "$build_dir" --prefix "$work/prefix" --component cpp >"$work/log" || { cat "$work/log"; exit 1; }
for folder in cpp/exec_hello cpp/generate_ids cpp/robot_loop cpp/transcribe c/generate_ids c/transcribe; do
  cmake -S "$source_dir/examples/$folder" -B "$work/$folder" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  cmake --build "$work/$folder" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
done
# The example must have seen the prefix, not the checkout.
grep -q "$source_dir/vivace" "$work"/cpp/exec_hello/CMakeFiles/*/compiler_depend.make "$work"/cpp/exec_hello/CMakeFiles/*/build.make &&
  fail "the example reads headers of the checkout"

expect() { # program, line
  local said
  said=$("$work/cpp/exec_hello/$1")
  grep -qxF "$2" <<<"$said" || fail "$1: no line '$2' in: $said"
}
expect exec_hello "x = 89, y = 55 after 5 runs"
expect exec_hello "NoVariant: graph context has no variant 0x9; captured keys: 0x8"
expect exec_hello_c "Vivace $version: counter = 5 after 5 replays"

said=$("$work/cpp/generate_ids/generate_ids" "$source_dir/tests/fixtures/tiny_gguf/llama_q4_1.gguf" 5 3 4 5 6)
[ "$(wc -w <<<"$said")" = 5 ] || fail "generate_ids: five token ids wanted, got: $said"
same=$("$work/c/generate_ids/generate_ids_c" "$source_dir/tests/fixtures/tiny_gguf/llama_q4_1.gguf" 5 3 4 5 6)
[ "$same" = "$said" ] || fail "generate_ids in C: '$said' wanted, got: $same"

for program in cpp/transcribe/transcribe c/transcribe/transcribe_c; do
  said=$("$work/$program" /nowhere/at/all "$source_dir/tests/capi/installed_package.sh" 2>&1) && fail "$program: there is no model, and it said: $said"
  grep -q "nowhere" <<<"$said" || fail "$program: $said"
done

said=$("$work/cpp/robot_loop/robot_loop" 127.0.0.1 1 1 2>&1) && fail "robot_loop: nobody listens, and it said: $said"
grep -q "Connection refused" <<<"$said" || fail "robot_loop: $said"

# The same by pkg-config, from a prefix that was moved.
if command -v pkg-config >/dev/null; then
  cp -r "$work/prefix" "$work/moved"
  PKG_CONFIG_PATH=$(dirname "$(find "$work/moved" -name vivace.pc)") && export PKG_CONFIG_PATH
  [ "$(pkg-config --modversion vivace vivace-cpp vivace-kernels | sort -u)" = "$version" ] || fail "pkg-config: not version $version"
  # shellcheck disable=SC2046
  "$cxx" -xc++ -std=c++20 "$source_dir/examples/cpp/exec_hello/exec_hello.cc" $(pkg-config --cflags vivace-cpp) -xnone $(pkg-config --libs vivace-cpp) -o "$work/by_pkg_config" >>"$work/log" 2>&1 &&
    cc "$source_dir/examples/c/generate_ids/generate_ids.c" $(pkg-config --cflags --libs vivace) -Wl,-rpath,"$(pkg-config --variable=libdir vivace)" -o "$work/by_pkg_config_c" >>"$work/log" 2>&1 ||
    { cat "$work/log"; fail "pkg-config: a program does not build"; }
  grep -qxF "x = 89, y = 55 after 5 runs" <<<"$("$work/by_pkg_config")" || fail "pkg-config: exec_hello"
  [ "$("$work/by_pkg_config_c" "$source_dir/tests/fixtures/tiny_gguf/llama_q4_1.gguf" 5 3 4 5 6)" = "$same" ] || fail "pkg-config: generate_ids in C"
  case "$(pkg-config --libs vivace-kernels)" in *vivace*) fail "pkg-config: vivace-kernels links a library" ;; esac
fi

# A kernel from the headers alone, compiled by NVRTC: a machine without a GPU compiles it, too.
toolkit=$(dirname "$(dirname "$(command -v nvcc || echo /usr/local/cuda/bin/nvcc)")")
if [ -e "$toolkit/include/nvrtc.h" ] && [ -e "$toolkit/lib64/libnvrtc.so" ]; then
  cmake -S "$source_dir/examples/cpp/raw_kernel" -B "$work/cpp/raw_kernel" -DCMAKE_PREFIX_PATH="$work/prefix" -DCUDAToolkit_ROOT="$toolkit" -DCMAKE_CXX_COMPILER="$cxx" \
    -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" >>"$work/log" 2>&1 && cmake --build "$work/cpp/raw_kernel" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  said=$("$work/cpp/raw_kernel/raw_kernel") || fail "raw_kernel: $said"
  grep -q "softmax.*: compiled" <<<"$said" && grep -qE "^(no GPU|softmax of 3 rows)" <<<"$said" || fail "raw_kernel: $said"
  nm "$work/cpp/raw_kernel/raw_kernel" | grep -qE "\bvv_|vivace3(ops|jit|exec)|vivace6device" && fail "raw_kernel links Vivace's library"
fi

# Kernels compiled by the user's nvcc.
if command -v nvcc >/dev/null; then
  flags=(-DCMAKE_CUDA_ARCHITECTURES=90a -DCMAKE_CUDA_FLAGS="--threads 2" -DCMAKE_CXX_COMPILER="$cxx" -DCMAKE_CUDA_HOST_COMPILER="$cxx")
  cmake -S "$source_dir/examples/cpp/direct_launch" -B "$work/cpp/direct_launch" -DCMAKE_PREFIX_PATH="$work/prefix" "${flags[@]}" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  cmake --build "$work/cpp/direct_launch" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  for op in gate/act_mul sampling/count_tokens rope/kv_append quantize/quantize_block_scaled moe/moe_route; do
    echo "#include \"vivace/kernels/${op}_launch.h\""
  done >"$work/headers.cu"
  nvcc -std=c++20 -arch=sm_90a --threads 2 -ccbin "$cxx" -DVV_LAUNCH_BF16=0 -DVV_LAUNCH_F16=0 -DVV_LAUNCH_E4M3=0 -I "$work/prefix/include" \
    -c "$work/headers.cu" -o "$work/headers.o" >>"$work/log" 2>&1 || { cat "$work/log"; exit 1; }
  said=$("$work/cpp/direct_launch/direct_launch") || fail "direct_launch: $said"
  grep -q "^InvalidDevice: softmax: " <<<"$said" && grep -qE "^(no GPU|softmax of 1000 values)" <<<"$said" || fail "direct_launch: $said"
fi
ls "$work"/prefix/include/vivace/kernels/norm/norm_launch.h >/dev/null || fail "no norm_launch.h is installed"

# Every symbol that the headers declare is there, and no other.
nm -D --defined-only "$(find "$work/prefix" -name libvivace.so)" | awk '{print $3}' | sort -u >"$work/shown"
grep -hE '^VV_API ' "$work"/prefix/include/vivace/capi/*.h | grep -oE '\bvv_[a-z_]+\(' | tr -d '(' | sort -u >"$work/declared"
diff "$work/declared" "$work/shown" || fail "libvivace.so and its headers differ (< headers, > library)"
echo "installed_package: $(wc -l <"$work/shown") symbols, all of them vv_*"
