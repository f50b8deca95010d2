"""Decode steps and prefill of published shapes on a GPU, random weights: bench/results/<chip>/llm.json.

    python bench/bench_llm_device.py [--models qwen3-8b,qwen3-0.6b] [--steps 400]

A step is what the host sees: tokens of all sequences, read back, while the device runs ahead; context 1,024. Its
floor counts weights and caches once at the measured copy rate. The peer is transformers 5.17 with torch.compile and
CUDA graphs on the same chip on an earlier day (bf16), so its ratio says less than one measured in turn.
"""
import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402

COPY_RATE = 4.25e12  # bytes a second, measured on the H200: docs/design/030-memory-bound.md
PEER = {("qwen3-8b", "bf16", 1): 7210.0, ("qwen3-8b", "bf16", 8): 12060.0, ("qwen3-0.6b", "bf16", 1): 2780.0}
# model, precision, kv, sequences
CASES = [("qwen3-8b", "bf16", "auto", (1, 8, 32)), ("qwen3-8b", "fp8", "auto", (1, 8, 32)), ("qwen3-8b", "w8a16", "auto", (1, 8)),
         ("qwen3-8b", "bf16", "e4m3", (1, 32)), ("qwen3-0.6b", "bf16", "auto", (1, 8, 32)), ("qwen3-0.6b", "w8a16", "auto", (1,)),
         ("llama-3.2-1b", "bf16", "auto", (1, 8)), ("smollm2-135m", "bf16", "auto", (1, 8))]
SOURCES = ["vivace/models/decoder/*.cc", "vivace/models/decoder/*.h", "vivace/serve/*.cc", "vivace/engine/*.cc", "vivace/kernels/**/*.cuh",
           "vivace/ops/*.h", "bench/bench_llm_device.py", "bench/configs/*/config.json", "python/vivace/bench.py"]
POSITION, PROMPT = 1024, 1024


def floor_us(report, kv_bytes, batch) -> float:
    """Weights that a step reads (the table of an untied embedding is not) and caches up to POSITION."""
    r = report
    table = r["vocab"] * r["hidden"] * 2
    weights = r["weight_bytes"] - table  # untied: the table; tied in 8 bits: likewise; tied in 16: added again
    if r["tied"] and r["head_dtype"] == "bf16":
        weights += table
    cache = batch * POSITION * r["layers"] * 2 * r["kv_heads"] * r["head_dim"] * kv_bytes
    return (weights + cache) / COPY_RATE * 1e6


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", help="names of bench/configs, with commas between; default: all")
    p.add_argument("--steps", type=int, default=400)
    args = p.parse_args()

    import vivace
    from vivace import device
    from vivace.bench import bench_text_model

    info, state = device.info(), device.state()
    r = Receipt("llm", chip=info["name"], sm=info["arch"], driver=str(state["driver"]), clocks_mhz={"sm": state["sm_mhz"], "mem": state["memory_mhz"]},
                commit=os.environ.get("VIVACE_COMMIT", "dirty"), command="python bench/bench_llm_device.py", versions={"vivace": vivace.__version__}, sources=SOURCES, limits={"copy_bytes_per_s": COPY_RATE})
    for name, precision, kv, batches in CASES:
        if args.models and name not in args.models.split(","):
            continue
        try:
            with vivace.load_model(ROOT / "bench/configs" / name, device="cuda", precision=precision, kv_dtype=kv, random_weights=True, context=2048,
                                   chunk=PROMPT, max_batch=max(batches)) as model:
                report = model.report()
                for batch in batches:
                    step, prefill = bench_text_model(model, steps=args.steps, prompt_tokens=PROMPT, batch=batch, position=POSITION)
                    limit = floor_us(report, 1 if report["kv_dtype"] == "e4m3" else 2, batch)
                    case = f"model={name},batch={batch},ctx={POSITION},kv={report['kv_dtype']},metric=step"
                    peer = PEER.get((name, precision, batch)) if kv == "auto" else None
                    rows = [dict(case=case, p50_us=step["p50_us"], p99_us=step["p99_us"], p999_us=step["p999_us"], n=step["n"], limit_us=limit,
                                 peer="transformers 5.17 + compile + CUDA graphs, archived" if peer else None, peer_p50_us=peer)]
                    if batch == 1 and kv == "auto":
                        rows.append(dict(case=f"model={name},prompt={PROMPT},metric=prefill", p50_us=prefill["p50_us"], p99_us=prefill["p99_us"], n=prefill["n"]))
                    for row in rows:
                        r.row(op="e2e", dtype=precision, tactic=f"launches={report['launches']} ahead={report['ahead']}", tool="host clock", **row)
                        share = f"floor {row['limit_us']:8.1f}  share {row['limit_us'] / row['p50_us']:.2f}" if row.get("limit_us") else ""
                        print(f"{row['case']:<75} {precision:<6} p50 {row['p50_us']:>9.1f} us  p99 {row['p99_us']:>9.1f}  {share}", flush=True)
        except vivace.Error as e:
            print(f"{name} {precision} kv={kv}: {e}", flush=True)  # no row: the receipt shows what ran
    print(r.write("bench").relative_to(ROOT))


if __name__ == "__main__":
    main()
