#!/usr/bin/env python3
"""attention_prefill_tma in which one token's span stands for its run's where the mask is full, and with room for tiles of 192 rows: a folder
for VIVACE_KERNEL_DIR, so that the op, its tests and benches run with it (prefill_tall.cuh's kernel is there too, for loop_model.py), and the header that prefill.cu takes beside the kernel as it is.

    python lab/attention/prefill_forms.py build/one-span
    VIVACE_KERNEL_DIR=$PWD/build/one-span python -m pytest ...
"""
import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.planting import places, replaced  # noqa: E402

KERNEL, SPANS, TALL = "vivace/kernels/attention/prefill_tma.cuh", "lab/attention/prefill_spans.cuh", "lab/attention/prefill_tall.cuh"
BEGIN, END = "namespace vivace::kernels {\n", "}  // namespace vivace::kernels\n"
COORD, ATTEND = "/// A tile's position in the grid:", "  /// Tokens [ta, tb), which share a slot; i counts blocks."
EDITS = [
    # The producer asks before it looks where the run ends.
    ("tb = run_end(a, ta, past_t, lane); int lo, hi; span_of_tokens(a, ta, tb, lane, &lo, &hi); if (hi <= lo) continue;", """const bool one = one_span(a);
        int lo, hi;
        if (!one) {
          tb = run_end_at_once<P.rows()>(a, ta, past_t, lane);
          span_of_tokens(a, ta, tb, lane, &lo, &hi);
          if (hi <= lo) continue;
        } else {
          span_of_tokens(a, ta, ta + 1, lane, &lo, &hi);
        }"""),
    ("tma_load_kv<kPanelsV>(*this, values(i), f.v, values_ring().full(i % kStages), box, page, position); }", """tma_load_kv<kPanelsV>(*this, values(i), f.v, values_ring().full(i % kStages), box, page, position);
        }
        if (one) tb = run_end_at_once<P.rows()>(a, ta, past_t, lane);"""),
    ("tb = run_end(a, ta, past_t, lane); attend(", "tb = run_end_at_once<P.rows()>(a, ta, past_t, lane);\n        attend("),
    ("this->begin(ta, tb, &lo, &hi); if (hi <= lo) return scores_done();", "begin_at_once(ta, tb, &lo, &hi);\n    if (hi <= lo) return scores_done();"),
    ("#pragma unroll for (int r = 0; r < 2; ++r) if (this->in_run(this->my_row(r), ta, tb)) seen.row(first[r], end[r]); seen.agree();", """if (one_span(a)) {
      seen.row(lo, hi);
    } else {
#pragma unroll
      for (int r = 0; r < 2; ++r)
        if (this->in_run(this->my_row(r), ta, tb)) seen.row(first[r], end[r]);
      seen.agree();
    }"""),
    # Three warpgroups: 32 * 128 + 160 * 384 registers are all.
    ("constexpr int kDown = P.dv > 128 ? 24 : 40, kUp = P.dv > 128 ? 240 : 232;", """constexpr int kDown = P.warps_m == 12 ? 32 : P.dv > 128 ? 24 : 40,
                kUp = P.warps_m == 12 ? 160 : P.dv > 128 ? 240 : 232;"""),
]
BEGIN_AT_ONCE = """  /// begin(), from one token where one stands for all.
  __device__ __forceinline__ void begin_at_once(int ta, int tb, int* least, int* most) {
    if (!one_span(a)) return this->begin(ta, tb, least, most);
    const AttentionSpan see(a, ta);
    *least = static_cast<int>(see.first), *most = static_cast<int>(see.end);
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const bool mine = this->in_run(this->my_row(r), ta, tb);
      first[r] = mine ? *least : 0, end[r] = mine ? *most : 0;
      row_max[r] = kMinusInfinity, row_sum[r] = 0;
      if constexpr (Hooks<V>::kEdits) this->token[r] = this->my_row(r) / a.group();
    }
#pragma unroll
    for (int n = 0; n < kOutTiles; ++n) out[n][0] = out[n][1] = out[n][2] = out[n][3] = 0;
  }

"""


def body(path: str) -> str:
    text = (ROOT / path).read_text()
    return text[text.index(BEGIN) + len(BEGIN) : text.rindex(END)].lstrip()


def edited(spans: str) -> str:
    source = (ROOT / KERNEL).read_text()
    for text, other in [(COORD, spans + COORD), (ATTEND, BEGIN_AT_ONCE + ATTEND)]:
        assert source.count(text) == 1, text
        source = source.replace(text, other)
    for text, other in EDITS:
        assert len(places(source, text)) == 1, text
        source = replaced(source, text, other)
    return source


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("folder", type=Path)
    folder = p.parse_args().folder
    kernel = folder / KERNEL
    kernel.parent.mkdir(parents=True, exist_ok=True)
    kernel.write_text(edited(body(SPANS)).replace(END, body(TALL) + END))
    apart = edited("").replace(BEGIN, "namespace vivace::kernels::forms {\n").replace(END, "}  // namespace vivace::kernels::forms\n")
    (folder / "prefill_one_span.cuh").write_text(apart.replace("#pragma once\n", f'#pragma once\n#include "{SPANS}"\n'))


if __name__ == "__main__":
    main()
