"""CONTRIBUTING's recipe, followed: a new op in a copy of the sources takes the files that it says and nothing else, builds,
and is tested by what is there. VIVACE_RECIPE=1 runs it: the copy is built whole, minutes without a compiler cache."""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "vivace/kernels/<group>/<op>.h": """// Arguments of `dampen`, shared by the CPU and CUDA kernels. POD; see vivace/ops/dampen.h.
#pragma once
#include "vivace/base/dtype.h"

namespace vivace::kernels {

struct DampenArgs {
  const void* x;        // [T, H] dtype
  void* out;            // [T, H] dtype
  const int32_t* rows;  // [1] device-side T, or null
  int64_t x_stride, out_stride;  // elements a row
  int32_t T, H;
  float by;
  DType dtype;
};

struct DampenPolicy {
  int32_t threads;
  constexpr bool operator==(const DampenPolicy&) const = default;
};

}  // namespace vivace::kernels
""",
    "vivace/kernels/<group>/<op>.cuh": """// dampen on CUDA: formula in vivace/ops/dampen.h.
// Chosen when: every call of its op.
#pragma once
#include "vivace/kernels/copy/dampen.h"
#include "vivace/kernels/ptx/pdl.cuh"
#include "vivace/kernels/tile/elem.cuh"

namespace vivace::kernels {

/// Grid: T blocks. Moves two times T * H elements.
template <class In, DampenPolicy P>
__global__ void __launch_bounds__(P.threads) dampen(const __grid_constant__ DampenArgs a) {
  ptx::dependency_wait();
  ptx::launch_dependents();
  const int64_t t = blockIdx.x;
  if (t >= valid_rows(a.rows, a.T)) return;
  for (int i = static_cast<int>(threadIdx.x); i < a.H; i += P.threads) {
    float v[1];
    load<1>(static_cast<const In*>(a.x) + t * a.x_stride + i, v);
    v[0] = __fmul_rn(v[0], a.by);
    store<1>(static_cast<In*>(a.out) + t * a.out_stride + i, v);
  }
}

}  // namespace vivace::kernels
""",
    "vivace/cpu/<group>/<op>.cc": """#include "vivace/kernels/copy/dampen.h"

#include "vivace/cpu/rows.h"

namespace vivace::cpu {

void dampen(const kernels::DampenArgs& a, Pool& pool) {
  for_rows(pool, valid_rows(a.rows, a.T), a.H, [&](int64_t t) {
    for_chunks(a.H, [&](int64_t first, int64_t n) {
      float h[kChunk];
      load_f32(a.x, a.dtype, t * a.x_stride + first, n, h);
      for (int64_t i = 0; i < n; ++i) h[i] *= a.by;
      store_f32(a.out, a.dtype, t * a.out_stride + first, n, h);
    });
  });
}

}  // namespace vivace::cpu
""",
    "vivace/ops/<op>.h": """// dampen: rows times a number.
#pragma once
#include "vivace/kernels/copy/dampen.h"
#include "vivace/ops/call.h"
#include "vivace/ops/gpu.h"

namespace vivace::cpu {
class Pool;
void dampen(const kernels::DampenArgs& a, Pool& pool);
}

namespace vivace::ops::defs {

struct dampen {
  using Args = kernels::DampenArgs;
  static constexpr Port kPorts[] = {in("x", "T,H", "f32|bf16", "rows"), out("out", "T,H", "=x", "the rows times by"), rows_port()};
  static constexpr Attr kAttrs[] = {real("by", 0.5, "the factor")};
  static constexpr OpSpec spec{
      .name = "dampen",
      .group = "copy",
      .brief = "Multiplies rows by a number.",
      .formula = "out = round(x * by), in f32",
      .source = "arithmetic",
      .ports = kPorts,
      .attrs = kAttrs,
  };

  static Status bind(const Call& c, Args* a) {
    *a = Args{.x = c.ptr("x"), .out = c.ptr("out"), .rows = c.ptr<int32_t>("rows"), .x_stride = c.row_stride("x"), .out_stride = c.row_stride("out"),
              .T = static_cast<int32_t>(c.dim("T")), .H = static_cast<int32_t>(c.dim("H")), .by = static_cast<float>(c.real("by")), .dtype = c["x"].dtype};
    return {};
  }
  static Cost cost(const Args& a) { return {.bytes = int64_t{a.T} * a.H * 2 * info(a.dtype).bytes, .flops = int64_t{a.T} * a.H}; }
  static void host(const Args& a, cpu::Pool& pool) { cpu::dampen(a, pool); }

  struct Gpu {
    static constexpr const char* kHeader = "vivace/kernels/copy/dampen.cuh";
    using Policy = kernels::DampenPolicy;
    struct Key {
      DType t;
      Policy p;
      bool operator==(const Key&) const = default;
    };
    static constexpr Policy kTactics[] = {{256}};
    static Result<Key> pick(const Args& a, Arch) { return Key{a.dtype, kTactics[0]}; }
    static std::string instance(const Key& k) { return kernel_expression("dampen<%s, vivace::kernels::DampenPolicy{%d}>", type_name(k.t), k.p.threads); }
    static void shape(const Args& a, const Key& k, exec::Launch* launch) {
      launch->grid[0] = static_cast<uint32_t>(a.T);
      launch->block[0] = static_cast<uint32_t>(k.p.threads);
    }
    template <class Visit>
    static void instances(Arch, Visit&& visit) {
      for (const DType t : {DType::f32, DType::bf16}) visit(Key{t, kTactics[0]});
    }
  };
};

}  // namespace vivace::ops::defs
""",
    "tests/ref/<op>.py": '''"""Reference of `dampen`."""
import numpy as np

from tests.differential.domain import Domain
from tests.ref.common import Case, round_to, rounding


def ref(x, *, by=0.5, dtypes):
    return {"out": round_to(x * float(np.float32(by)), dtypes["out"])}


def bound(port, value, dtype, inputs):
    """One product, and one rounding: a unit in the last place."""
    return rounding(value, dtype)


CASES = [Case({"T": 5, "H": 300}, {"x": "f32", "out": "f32"}), Case({"T": 3, "H": 17}, {"x": "bf16", "out": "bf16"}, {"by": -1.75}),
         Case({"T": 6, "H": 40}, {"x": "bf16", "out": "bf16", "rows": "i32"}, rows=4), Case({"T": 0, "H": 8}, {"x": "f32", "out": "f32"})]
DOMAIN = Domain(attrs={"by": (-1.75, 0.0)})
''',
}
LINE = "OP(dampen)"


def run(tree, *command, **env):
    done = subprocess.run([str(c) for c in command], cwd=tree, env=os.environ | env, capture_output=True, text=True)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def test_recipe_names_these_files():
    table = (ROOT / "CONTRIBUTING.md").read_text().split("## Add an op")[1].split("Nothing else is edited")[0]
    assert re.findall(r"^\| `([^`]+)`", table, re.M) == [*FILES, "vivace/ops/ops.def"]


@pytest.mark.skipif("VIVACE_RECIPE" not in os.environ, reason="VIVACE_RECIPE=1 builds a copy of the sources")
@pytest.mark.timeout(1800)
def test_a_new_op_by_the_recipe(tmp_path):
    tree = tmp_path / "copy"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns("build", ".venv", ".git", "results", "__pycache__"))
    for name, text in FILES.items():
        to = tree / name.replace("<group>", "copy").replace("<op>", "dampen")
        assert not to.exists()
        to.write_text(text)
    definitions = tree / "vivace/ops/ops.def"
    definitions.write_text(definitions.read_text().rstrip("\n") + f"\n{LINE}\n")
    run(tree, "tools/check", "op_table", "layers", "size")
    cache = {"CCACHE_BASEDIR": str(tree), "CCACHE_NOHASHDIR": "1"}  # a later run's copy lies elsewhere
    run(tree, "cmake", "-S", ".", "-B", "build/new", "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DVV_PYTHON=ON", f"-DPython_EXECUTABLE={sys.executable}", **cache)
    run(tree, "cmake", "--build", "build/new", "-j", "2", **cache)
    face = {"PYTHONPATH": f"{tree}/build/new/python", "PYTHONDONTWRITEBYTECODE": "1"}
    said = run(tree, sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/test_ops.py", "tests/test_ops_bad.py", "-k", "[dampen- or [dampen]", **face)
    assert int(re.search(r"(\d+) passed", said)[1]) > 40 and "failed" not in said
    assert "out = round(x * by)" in run(tree, sys.executable, "-c", "from vivace import ops; print(ops.dampen.__doc__)", **face)
    kernels = run(tree, sys.executable, "-c", "from vivace import _core, pack; print(len(_core.gpu_instances('dampen', 90)), pack.build('p.vvp', ['sm_90a'], ['dampen'])['kernels'])", **face)
    assert kernels.split() == ["2", "2"]
