"""Decode steps and prefill of published shapes on a GPU, random weights: bench/results/<chip>/llm.json.

    python bench/bench_llm_device.py [--models qwen3-8b,qwen3-0.6b] [--steps 400]

A step is what the host sees: tokens of all sequences, read back, while the device runs ahead; context 1,024. Its
floor counts weights and caches once at the measured copy rate. Peers marked archived are transformers 5.17 with
torch.compile and CUDA graphs on the same chip on an earlier day (bf16); --parts peers measures it in turn with ours.
metric=prefill is a prompt that comes alone, prefill_in_turn one of twenty: large products one behind the other bring the chip to its power
limit, and its clock down. metric=graph rows (--parts curves) are the step's graph alone, replayed: over context and batch; their metric=prefill rows are prompts that come alone. metric=jitter: 20,000 steps of
one sequence that starts anew at the same context every 400. invariance=strict: the same with one
class of rows; metric=answer is a prompt and its answer. room=32: one sequence of a model that could hold 32. metric=start: from the start of a process to the first
token of a checkpoint of that shape, its file in the page cache and its kernels in the kernel cache.
--parts gguf: a file in the formats of Q4_K_M, random codes; its first load reads and uploads it.
Of hybrids (--parts verified,states): metric=verified is a step that checks guesses behind fresh tokens, beside metric=plain, each waited for; metric=snapshot, restore
and fork are copies of a sequence's state on the device.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tools.receipt import Receipt  # noqa: E402

COPY_RATE = 4.25e12  # bytes a second, measured on the H200: docs/design/030-memory-bound.md
PRODUCT_RATE = {"bf16": 790e12, "fp8": 1350e12, "fp8_static": 1350e12, "w8a16": 790e12, "w4a16": 790e12, "int4": 790e12}  # FLOP a second, likewise
PEER = {("qwen3-8b", "bf16", 1): 7210.0, ("qwen3-8b", "bf16", 8): 12060.0, ("qwen3-0.6b", "bf16", 1): 2780.0}
# model, precision, kv, sequences
CASES = [("qwen3-8b", "bf16", "auto", (1, 8, 32)), ("qwen3-8b", "fp8_static", "auto", (1, 8, 32)), ("qwen3-8b", "fp8", "auto", (1,)), ("qwen3-8b", "w8a16", "auto", (1, 8)), ("qwen3-8b", "w4a16", "auto", (1, 8, 32)), ("qwen3-8b", "int4", "auto", (1, 8, 32)),
         ("qwen3-8b", "bf16", "e4m3", (32,)), ("qwen3-0.6b", "bf16", "auto", (1, 8, 32)),
         ("llama-3.2-1b", "bf16", "auto", (1, 8)), ("smollm2-135m", "bf16", "auto", (1,)),
         *((name, precision, "auto", (1,)) for name in ("qwen3-0.6b", "llama-3.2-1b", "smollm2-135m") for precision in ("w8a16", "fp8_static")), ("qwen3-30b-a3b", "bf16", "auto", (1,)),
         ("qwen3-30b-a3b", "w8a16", "auto", (1,)), ("qwen3-30b-a3b", "fp8", "auto", (1,)), ("qwen3-30b-a3b", "fp8_static", "auto", (1,)), ("qwen3-30b-a3b", "int4", "auto", (1, 8)),
         ("qwen3.6-27b", "bf16", "auto", (1, 8)), ("qwen3.6-27b", "w8a16", "auto", (1,)), ("qwen3.6-27b", "fp8", "auto", (1,)), ("qwen3.6-27b", "fp8_static", "auto", (1, 8)), ("qwen3.6-27b", "w4a16", "auto", (1, 8)),
         # w4a16 leaves the matrices of experts 16-bit.
         ("qwen3.6-35b-a3b", "bf16", "auto", (1,)), ("qwen3.6-35b-a3b", "w8a16", "auto", (1,)), ("qwen3.6-35b-a3b", "fp8", "auto", (1,)), ("qwen3.6-35b-a3b", "fp8_static", "auto", (1,)), ("qwen3.6-35b-a3b", "w4a16", "auto", (1,)), ("qwen3.6-35b-a3b", "int4", "auto", (1, 8))]
SOURCES = ["vivace/models/decoder/*.cc", "vivace/models/decoder/*.h", "vivace/serve/*.cc", "vivace/engine/*.cc", "vivace/kernels/**/*.cuh",
           "vivace/ops/*.h", "bench/bench_llm_device.py", "bench/configs/*/config.json", "python/vivace/bench.py"]
POSITION, PROMPT = 1024, 1024
ROOM = 32  # sequences that a model could hold in the one row that measures what that costs a single one
CURVE_CHUNK = 128
# model, precision, rows of a step, positions
CURVES = [("qwen3-8b", "bf16", (1,), (1024, 2048, 4096, 8192, 16384, 32768)), ("llama-3.2-1b", "bf16", (1,), (1024, 8192, 32768, 65536, 131071)),
          ("qwen3-8b", "bf16", (2, 4, 8, 16, 32, 64), (1024,)),
          *((name, "bf16", (1,), (1024, 8192, 32768, 131072, 262143)) for name in ("qwen3.6-27b", "qwen3.6-35b-a3b"))]
PROMPT_CURVES = [("qwen3-8b", precision, (128, 256, 512, 1024, 2048, 4096, 8192)) for precision in ("bf16", "fp8_static", "int4")]
PROMPT_CURVE_CHUNK = 2048
JITTER = ("smollm2-135m", "bf16", 20_000, 400)
STRICT = ("qwen3-8b", "bf16", (1, 2), 256)  # room: 2 slots let a step of one prompt hold 64 tokens, 1 slot 16; tokens of an answer
PEERS = ("qwen3-0.6b", "qwen3-8b")
BUDGET = [("qwen3-8b", "bf16", (1, 8, 32)), ("qwen3-8b", "fp8_static", (1,)), ("qwen3-0.6b", "bf16", (1, 8)), ("qwen3-30b-a3b", "bf16", (1,)),
          ("qwen3.6-35b-a3b", "bf16", (1,)), ("qwen3.6-35b-a3b", "fp8_static", (1,))]
GUESSES, VERIFIED_GOAL = 4, 1.25  # a step that checks so many takes at most so many plain ones
STATE_GOAL = 60.0  # us of a copy of a sequence's state
HYBRIDS = [("qwen3.6-27b", "bf16"), ("qwen3.6-27b", "w4a16"), ("qwen3.6-35b-a3b", "bf16")]
START = ("qwen3-8b", "bf16", 6e6)  # goal in us
GGUF = ("qwen3-8b", (1, 8), (128, 1024))  # model, rows of a step, tokens of a prompt


def experts_bytes(report) -> float:
    """Of all experts' matrices."""
    size = {"q4_0": 0.5625, "e4m3": 1}.get(report["forms"]["layers"]["gate_up"], 2)
    return report["layers"] * report["experts"] * 3 * report["mlp"] * report["hidden"] * size


def floor_us(report, kv_bytes, batch, position=POSITION) -> float:
    """Weights that a step reads (the table of an untied embedding is not; of experts, those that one row takes), caches up to
    `position` of the layers that attend, and recurrent states, which are read and written."""
    r = report
    table = r["vocab"] * r["hidden"] * 2
    weights = r["weight_bytes"] - table  # untied: the table; tied in 8 bits: likewise; tied in 16: added again
    if r["tied"] and r["head_dtype"] == "bf16":
        weights += table
    if r["experts"]:
        weights -= experts_bytes(r) * (1 - min(1, batch * r["experts_used"] / r["experts"]))
    cache = batch * position * (r["layers"] - r["recurrent_layers"]) * 2 * r["kv_heads"] * r["head_dim"] * kv_bytes
    return (weights + cache + 2 * batch * r["state_bytes"]) / COPY_RATE * 1e6


def hybrid_prefill_floor_us(report, precision, config, T) -> float:
    """prefill_floor_us() of layers of two kinds; the delta rule token by token, 6 FLOP an element of a state. Experts, the shared
    one too, are 16-bit in w4a16."""
    r, c = report, config
    h, dk, dv, hv = r["hidden"], c["linear_key_head_dim"], c["linear_value_head_dim"], c["linear_num_value_heads"]
    size = {"bf16": 2, "w4a16": 0.5625, "int4": 0.5625}.get(precision, 1)
    seconds = lambda rows, params, held, bytes_each: max(2 * rows * params / PRODUCT_RATE[precision], held * bytes_each / COPY_RATE)  # noqa: E731
    product = lambda n, k, bytes_each=size: seconds(T, n * k, n * k, bytes_each)  # noqa: E731
    attended, values = r["heads"] * r["head_dim"], hv * dv
    attends = product(2 * attended + 2 * r["kv_heads"] * r["head_dim"], h) + product(h, attended) + 2 * T * T * attended / PRODUCT_RATE["bf16"]
    carries = product(2 * c["linear_num_key_heads"] * dk + 2 * values, h) + product(2 * hv, h, 2) + product(h, values) + 6 * T * hv * dk * dv / PRODUCT_RATE["bf16"]
    if r["experts"]:
        one, shared, each = 3 * h * r["mlp"], 3 * h * c["shared_expert_intermediate_size"], 2 if precision == "w4a16" else size
        mlp = seconds(T, one * r["experts_used"], one * r["experts"], each) + seconds(T, shared, shared, each)
    else:
        mlp = product(2 * r["mlp"], h) + product(h, r["mlp"])
    head = r["vocab"] * h * {"bf16": 2, "q8_0": 1.0625}.get(r["head_dtype"], 1) / COPY_RATE
    return (r["layers"] * mlp + r["recurrent_layers"] * carries + (r["layers"] - r["recurrent_layers"]) * attends + head) * 1e6


def shape(name) -> dict:
    return json.loads((ROOT / "bench/configs" / name / "config.json").read_text())


def prefill_floor_us(report, precision, name, T=PROMPT) -> float:
    """Each product and attention by what limits it, one after the other; one row of the head. Experts: all are read."""
    r = report
    if r["recurrent_layers"]:
        return hybrid_prefill_floor_us(report, precision, shape(name), T)
    attended = r["heads"] * r["head_dim"]
    mlp = r["mlp"] * max(1, r["experts_used"])
    params = [(attended + 2 * r["kv_heads"] * r["head_dim"]) * r["hidden"], attended * r["hidden"], 2 * mlp * r["hidden"], mlp * r["hidden"]]
    held = [params[0], params[1], *(p * max(1, r["experts"]) // max(1, r["experts_used"]) for p in params[2:])]
    size = {"bf16": 2, "w4a16": 0.5625, "int4": 0.5625}.get(precision, 1)
    layer = sum(max(2 * T * p / PRODUCT_RATE[precision], h * size / COPY_RATE) for p, h in zip(params, held))
    layer += 2 * T * T * attended / PRODUCT_RATE["bf16"]  # causal: half of the scores
    return (r["layers"] * layer + r["vocab"] * r["hidden"] * (2 if r["head_dtype"] == "bf16" else 1) / COPY_RATE) * 1e6


def warm(models, parts) -> None:
    """Kernels of every load below, compiled side by side: a few layers of a model have those of all its layers."""
    code = "import sys, vivace; vivace.load_model(sys.argv[1], device='cuda', precision=sys.argv[2], kv_dtype=sys.argv[3], random_weights=True, context=int(sys.argv[4]), prefill_chunk=int(sys.argv[5]), max_batch=int(sys.argv[6]), invariance=sys.argv[7], mtp=int(sys.argv[8])).close()"
    room = lambda name, precision, kv, batch, invariance="class", mtp=0: (name, precision, kv, 2 * POSITION, PROMPT, batch, invariance, mtp)  # noqa: E731
    jobs = {room(name, precision, kv, batch) for name, precision, kv, batches in CASES for batch in batches} | {room(*CASES[0][:3], ROOM)} if "cases" in parts else set()
    jobs |= {(name, precision, "auto", max(at) + 1, CURVE_CHUNK, batch, "class", 0) for name, precision, rows, at in CURVES for batch in rows} if "curves" in parts else set()
    jobs |= {(name, precision, "auto", max(lengths) + 8, PROMPT_CURVE_CHUNK, 1, "class", 0) for name, precision, lengths in PROMPT_CURVES} if "curves" in parts else set()
    jobs |= {room(name, "bf16", "auto", 1) for name in PEERS} if "peers" in parts else set()
    jobs |= {room(name, precision, "auto", batch) for name, precision, batches in BUDGET for batch in batches} if "budget" in parts else set()
    jobs |= {room(name, precision, "auto", 2 * GUESSES + 1, mtp=GUESSES) for name, precision in HYBRIDS} if "verified" in parts else set()
    jobs |= {room(name, precision, "auto", 2) for name, precision in HYBRIDS if precision == "bf16"} if "states" in parts else set()
    always = {room(*STRICT[:2], "auto", rows, kind) for rows in STRICT[2] for kind in ("class", "strict")} if "strict" in parts else set()
    always |= {room(*JITTER[:2], "auto", 1)} if "jitter" in parts else set()
    with tempfile.TemporaryDirectory() as folder:
        chosen = sorted({j for j in jobs if models is None or j[0] in models} | always)
        for name in {j[0] for j in chosen}:
            config = shape(name)
            config |= {"num_hidden_layers": config.get("full_attention_interval", 2)}  # of hybrids one that attends, too
            (Path(folder) / name).mkdir()
            (Path(folder) / name / "config.json").write_text(json.dumps(config))
        commands = [(code, str(Path(folder) / job[0]), *map(str, job[1:])) for job in chosen]
        peer = "import sys; from bench.peers.transformers_step import Peer; Peer(sys.argv[1], int(sys.argv[2]))"  # its compiler keeps what it made
        commands[:0] = [(peer, str(ROOT / "bench/configs" / name), str(POSITION)) for name in PEERS if "peers" in parts and (models is None or name in models)]
        run = lambda words: subprocess.run([sys.executable, "-c", *words], cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # noqa: E731
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # each holds some gigabytes of the device
            list(pool.map(run, commands))


def load(vivace, name, precision, batch, **options):
    """A model for `batch` sequences: attention's cut follows from how many there may be."""
    return vivace.load_model(ROOT / "bench/configs" / name, device="cuda", precision=precision, random_weights=True, max_batch=batch, **options)


def steps(vivace, add, count, name, precision, kv, batches) -> None:
    from vivace.bench import bench_text_model

    for room, batch in [(b, b) for b in batches] + [(ROOM, 1)] * ((name, precision, kv) == CASES[0][:3]):
        with load(vivace, name, precision, room, kv_dtype=kv, context=2 * POSITION, prefill_chunk=PROMPT) as model:
            report = model.report()
            alone = batch == 1 and kv == "auto" and room == batch
            step, *prefills = bench_text_model(model, steps=count, prompt_tokens=PROMPT, batch=batch, position=POSITION, in_turn=20 if alone else 0)
            peer = PEER.get((name, precision, batch)) if kv == "auto" and room == batch else None
            beside = f",room={room}" if room != batch else ""
            add(report, precision, f"model={name},batch={batch}{beside},ctx={POSITION},kv={report['kv_dtype']},metric=step", **{k: step[k] for k in ("p50_us", "p99_us", "p999_us", "n")},
                limit_us=floor_us(report, 1 if report["kv_dtype"] == "e4m3" else 2, batch), peer="transformers 5.17 + compile + CUDA graphs (archived)" if peer else None, peer_p50_us=peer)
            for metric, row in zip(("prefill", "prefill_in_turn"), prefills if alone else []):
                add(report, precision, f"model={name},prompt={PROMPT},metric={metric}", **{k: row[k] for k in ("p50_us", "p99_us", "n")}, limit_us=prefill_floor_us(report, precision, name))


def gguf(vivace, add) -> None:
    """Matrices in four and six bits a weight beside each other, as most files have them."""
    from bench import gguf_file
    from vivace.bench import bench_text_model

    name, batches, prompts = GGUF
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "q4_k_m.gguf"
        weights = gguf_file.write(file, shape(name))
        for batch in batches:
            start = time.perf_counter()
            with vivace.load_model(file, device="cuda", context=2 * POSITION, prefill_chunk=PROMPT, max_batch=batch) as model:
                seconds, report = time.perf_counter() - start, model.report()
                step = bench_text_model(model, batch=batch, steps=200, prompt_tokens=8, position=POSITION)[0]
                cache = batch * POSITION * report["layers"] * 2 * report["kv_heads"] * report["head_dim"] * 2
                add(report, "q4_k_m", f"model={name},batch={batch},ctx={POSITION},metric=step", **{k: step[k] for k in ("p50_us", "p99_us", "p999_us", "n")},
                    limit_us=(weights + cache) / COPY_RATE * 1e6, note=f"loaded in {seconds:.1f} s")
                for tokens in prompts if batch == 1 else ():
                    row = bench_text_model(model, steps=8, prompt_tokens=tokens, position=POSITION)[1]
                    add(report, "q4_k_m", f"model={name},prompt={tokens},metric=prefill", **{k: row[k] for k in ("p50_us", "p99_us", "n")}, limit_us=prefill_floor_us(report, "int4", name, tokens))


def strict(vivace, add) -> None:
    """What it costs that tokens of prompts have the bits of tokens of answers: the same model, two classes and one."""
    from vivace.bench import bench_text_model

    name, precision, rooms, tokens = STRICT
    prompt = [(i * 7919 + 13) % 30_000 for i in range(PROMPT)]
    for room in rooms:
        before = {}
        for invariance in ("class", "strict"):
            with load(vivace, name, precision, room, context=2 * POSITION, prefill_chunk=PROMPT, invariance=invariance) as model:
                rows = dict(zip(("step", "prefill"), bench_text_model(model, steps=100, prompt_tokens=PROMPT, position=POSITION)))
                times = []
                for _ in range(3):
                    start = time.perf_counter()
                    model.generate_ids(prompt, max_tokens=tokens)
                    times.append(time.perf_counter() - start)
                rows["answer"] = {"p50_us": sorted(times)[1] * 1e6, "n": 3}
                for metric, row in rows.items():
                    note = f"{row['p50_us'] / before[metric] - 1:+.1%} of class" if metric in before else None
                    before.setdefault(metric, row["p50_us"])
                    what = f",prompt={PROMPT},tokens={tokens}" if metric == "answer" else f",ctx={POSITION}"
                    add(model.report(), precision, f"model={name},batch=1,room={room}{what},invariance={invariance},metric={metric}", note=note, **{k: row.get(k) for k in ("p50_us", "p99_us", "n")})


def beside(vivace, add, models) -> None:
    """A step of ours and of transformers, in turn in this process, from the same context."""
    import torch

    from bench.peers.transformers_step import Peer
    from vivace.bench import bench_text_model

    for name in PEERS:
        if models and name not in models:
            continue
        begun = time.monotonic()
        peer = Peer(ROOT / "bench/configs" / name, POSITION)
        seconds = time.monotonic() - begun
        with load(vivace, name, "bf16", 1, context=2 * POSITION, prefill_chunk=PROMPT) as model:
            ours, theirs = [], []
            for _ in range(5):
                ours.append(bench_text_model(model, steps=100, prompt_tokens=8, position=POSITION)[0])
                theirs += peer.steps(100)
            theirs.sort()
            p50 = sorted(row["p50_us"] for row in ours)[2]
            add(model.report(), "bf16", f"model={name},batch=1,ctx={POSITION},peer=transformers,metric=step", p50_us=p50, p99_us=max(row["p99_us"] for row in ours), n=sum(row["n"] for row in ours),
                peer=peer.name, peer_p50_us=theirs[len(theirs) // 2], note=f"peer p99 {theirs[int(len(theirs) * 0.99)]:.1f} us, {seconds:.0f} s to compile and capture; median of five turns")
        del peer
        torch.cuda.empty_cache()


def curves(vivace, add, models) -> None:
    from vivace.bench import bench_text_model

    for name, precision, batches, positions in CURVES:
        for batch in batches if not models or name in models else []:
            with load(vivace, name, precision, batch, context=max(positions) + 1, prefill_chunk=CURVE_CHUNK) as model:
                report = model.report()
                for position in positions:
                    step = model.profile(rows=batch, position=position)["step_us"]
                    add(report, precision, f"model={name},batch={batch},ctx={position},metric=graph", p50_us=step, limit_us=floor_us(report, 2, batch, position), tool="graph replays, host clock")
    for name, precision, lengths in PROMPT_CURVES:
        if models and name not in models:
            continue
        with load(vivace, name, precision, 1, context=max(lengths) + 8, prefill_chunk=PROMPT_CURVE_CHUNK) as model:
            report = model.report()
            for tokens in lengths:
                row = bench_text_model(model, steps=4, prompt_tokens=tokens)[1]
                add(report, precision, f"model={name},prompt={tokens},metric=prefill", **{k: row[k] for k in ("p50_us", "p99_us", "n")}, limit_us=prefill_floor_us(report, precision, name, tokens))


def budget(vivace, add, models) -> None:
    """A step by kinds of launch, in the order in which they come up first: each alone, and what the step is faster without it."""
    for name, precision, batches in BUDGET:
        for batch in batches if not models or name in models else []:
            with load(vivace, name, precision, batch, context=2 * POSITION, prefill_chunk=PROMPT) as model:
                p, report = model.profile(rows=batch, position=POSITION, in_step=True), model.report()
                where = f"model={name},batch={batch},ctx={POSITION}"
                for at, g in enumerate(p["groups"]):
                    add(report, precision, f"{where},launch={at}.{g['op']},times={g['launches']},metric=launch", tool="graph replays, host clock", p50_us=g["us"], bytes=g["bytes"], flops=g["flops"],
                        limit_us=g["bytes"] / COPY_RATE * 1e6, note=f"{g['in_step_us']:.2f} us in the step")
                add(report, precision, f"{where},metric=graph", tool="graph replays, host clock", p50_us=p["step_us"], limit_us=floor_us(report, 2, batch), note=f"{len(p['order'])} launches")


def verified(vivace, add, models) -> None:
    """A step of one token, and steps that check guesses: behind one token, and behind as many as had all been right. In turn, from one context on."""
    from vivace.bench import percentiles

    kinds = {"plain": (1, 0), "verified": (1, GUESSES), "verified_all_right": (1 + GUESSES, GUESSES)}
    for name, precision in HYBRIDS:
        if models and name not in models:
            continue
        with load(vivace, name, precision, 2 * GUESSES + 1, mtp=GUESSES, context=2 * POSITION, prefill_chunk=PROMPT) as model:
            report, core, seconds, at = model.report(), model._live, {k: [] for k in kinds}, POSITION
            core.start(0)
            core.step([(i * 7919 % report["vocab"], i, 0, i == POSITION - 1) for i in range(POSITION)])
            for turn in range(110):
                for kind, (fresh, guesses) in kinds.items():
                    rows = [((at + i) * 7919 % report["vocab"], at + i, 0, True, i >= fresh) for i in range(fresh + guesses)]
                    begun = time.perf_counter()
                    core.step(rows)
                    if turn >= 10:
                        seconds[kind].append(time.perf_counter() - begun)
                    at += fresh
            plain = percentiles(seconds["plain"])["p50_us"]
            for kind, (fresh, guesses) in kinds.items():
                p = percentiles(seconds[kind])
                note = f"{p['p50_us'] / plain:.3f} of plain, goal {VERIFIED_GOAL}" if guesses else "waited for"
                add(report, precision, f"model={name},batch=1,ctx={POSITION},fresh={fresh},guesses={guesses},metric={kind.partition('_')[0]}", **{k: p[k] for k in ("p50_us", "p99_us", "n")}, note=note)


def states(vivace, add, models) -> None:
    """Copies of a sequence's state, many queued one behind the other: from a slot to a place that keeps it, back, and to another slot."""
    from vivace.bench import percentiles

    copies, slots = 64, 2
    for name, precision in HYBRIDS:
        if models and name not in models or precision != "bf16":  # it is f32 under every plan
            continue
        with load(vivace, name, precision, slots, context=2 * POSITION, prefill_chunk=PROMPT, num_kv_blocks="full") as model:
            report, core = model.report(), model._live
            core.start(0)
            core.step([(1, 0, 0, True)])

            def queued(pair, times):
                core.logits()
                begun = time.perf_counter()
                core.copy_state(*pair, times)
                core.logits()  # waits
                return time.perf_counter() - begun

            for metric, pair in (("snapshot", (0, slots)), ("restore", (slots, 0)), ("fork", (0, 1))):
                seconds = [(queued(pair, copies) - queued(pair, 0)) / copies for _ in range(12)][2:]
                p = percentiles(seconds)
                add(report, precision, f"model={name},bytes={report['state_bytes']},metric={metric}", p50_us=p["p50_us"], n=len(seconds) * copies, limit_us=2 * report["state_bytes"] / COPY_RATE * 1e6, note=f"goal {STATE_GOAL:.0f}")


def host_gaps(seconds, least) -> float:
    """How often a second this host takes `least` seconds or more away from a loop that reads the clock and nothing else."""
    clock, gaps = time.perf_counter, 0
    last = begun = clock()
    while last < begun + seconds:
        now = clock()
        gaps += now - last >= least
        last = now
    return gaps / seconds


def jitter(vivace, add) -> None:
    """Times between tokens; the first of each run, which waits for the prompt, left out."""
    from vivace import _core
    from vivace.bench import percentiles

    name, precision, count, run = JITTER
    seconds = []
    with load(vivace, name, precision, 1, context=2 * POSITION, prefill_chunk=PROMPT) as model:
        report = model.report()
        request = dict(prompt=[(i * 7919 + 13) % report["vocab"] for i in range(POSITION)], max_tokens=run + 4, temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0,
                       presence=0.0, frequency=0.0, seed=0, stop=[])
        while len(seconds) < count:
            batcher = _core.Batcher(model._live)
            batcher.submit(**request)
            times = []
            while not batcher.idle():
                batcher.step()
                times.append(time.perf_counter())
            seconds += [b - a for a, b in zip(times, times[1:])][-run:]
            del batcher  # a model has one at a time
    p = percentiles(seconds)
    add(report, precision, f"model={name},batch=1,ctx={POSITION},metric=jitter", **p, note=f"p99.9 is {p['p999_us'] / p['p50_us']:.3f} of p50, goal 1.03; the longest {max(seconds) * 1e6:.0f} us; {host_gaps(2, 0.03 * p['p50_us'] / 1e6):.0f} times a second this host takes 3 % of a step or more from a loop that reads the clock")


_FIRST_TOKEN = """
import json, os, sys, time
born = float(sys.argv[2])
at = {"interpreter": time.time() - born}
import vivace
at["import"] = time.time() - born
model = vivace.load_model(sys.argv[1], device="cuda", precision="bf16")
at["loaded"] = time.time() - born
model.generate_ids([1, 2, 3], max_tokens=1)
at["first_token"] = time.time() - born
print(json.dumps({"at": at, "load": model.report()["load_s"]}))
"""


def hollow_checkpoint(folder, config) -> int:
    """A checkpoint of Qwen3's layout for `config` whose weights are zeros, as a file with a hole; bytes of its weights."""
    h, m, v, d = config["hidden_size"], config["intermediate_size"], config["vocab_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * d, config["num_key_value_heads"] * d
    shapes = {"model.embed_tokens.weight": [v, h], "model.norm.weight": [h]} | ({} if config.get("tie_word_embeddings") else {"lm_head.weight": [v, h]})
    for i in range(config["num_hidden_layers"]):
        layer = {"input_layernorm": [h], "post_attention_layernorm": [h], "self_attn.q_norm": [d], "self_attn.k_norm": [d], "self_attn.q_proj": [q, h], "self_attn.k_proj": [kv, h],
                 "self_attn.v_proj": [kv, h], "self_attn.o_proj": [h, q], "mlp.gate_proj": [m, h], "mlp.up_proj": [m, h], "mlp.down_proj": [h, m]}
        shapes |= {f"model.layers.{i}.{k}.weight": s for k, s in layer.items()}
    table, offset = {}, 0
    for key, shape in shapes.items():
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        table[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps(table).encode()
    header += b" " * (-len(header) % 8)
    with open(Path(folder) / "model.safetensors", "wb") as f:
        f.write(struct.pack("<Q", len(header)) + header)
        f.truncate(8 + len(header) + offset)
    (Path(folder) / "config.json").write_text(json.dumps(config))
    return offset


def start(add) -> None:
    """A file of zeros: what it costs to bring weights over does not depend on their values."""
    name, precision, goal = START
    with tempfile.TemporaryDirectory() as folder:
        size = hollow_checkpoint(folder, shape(name))
        runs = []
        for _ in range(3):  # the first brings the file into the page cache and the kernels into theirs
            out = subprocess.run([sys.executable, "-c", _FIRST_TOKEN, folder, str(time.time())], capture_output=True, text=True, check=True)
            runs.append(json.loads(out.stdout.strip().splitlines()[-1]))
    best = min(runs[1:], key=lambda r: r["at"]["first_token"])
    phases = ", ".join(f"{k} {s:.3f}" for k, s in [*best["at"].items(), *(("load/" + k, s) for k, s in best["load"].items())])
    add(None, precision, f"model={name},bytes={size},metric=start", p50_us=best["at"]["first_token"] * 1e6, n=2, limit_us=goal, note=f"seconds: {phases}; first run {runs[0]['at']['first_token']:.2f}")


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", help="names of bench/configs, with commas between; default: all")
    p.add_argument("--steps", type=int, default=400)
    p.add_argument("--parts", default="jitter,strict,start,states,verified,gguf,cases", help="what to run, with commas between; budget has a row for each kind of launch of a step; peers is a part of its own, whose compiles take a minute a model; curves alone have a receipt of their own, llm_curves.json, which tools/draw_curves.py draws")
    p.add_argument("--warm", action="store_true", help="first compile every kernel, a process a model side by side: loads then take less of a borrowed machine's time")
    p.add_argument("--only-warm", action="store_true", help="that alone, for runs that follow with the same caches: it may share the machine with others, timings may not")
    args = p.parse_args()

    begun = time.monotonic()
    models, parts = args.models.split(",") if args.models else None, args.parts.split(",")
    if args.only_warm:
        return warm(models, parts)
    import vivace
    from vivace import device

    only = parts == ["curves"]
    info, state = device.info(), device.state()
    r = Receipt("llm_curves" if only else "llm", chip=info["name"], sm=info["arch"], driver=str(state["driver"]), clocks_mhz={"sm": state["sm_mhz"], "mem": state["memory_mhz"]},
                commit=os.environ.get("VIVACE_COMMIT", "dirty"), command="python bench/bench_llm_device.py" + (" --parts curves" if only else ""), versions={"vivace": vivace.__version__}, sources=SOURCES, limits={"copy_bytes_per_s": COPY_RATE})

    def add(report, precision, case, tool="host clock", **row):
        tactic = f"launches={report['launches']} max_in_flight_steps={report['max_in_flight_steps']}" if report else "process"
        r.row(op="e2e", case=case, dtype=precision, tactic=tactic, tool=tool, **row)
        r.write("bench")  # a run that is cut short keeps what it has
        limit = f"limit {row['limit_us']:9.1f}  {row['p50_us'] / row['limit_us']:.2f} x  " if row.get("limit_us") else ""
        p99 = f"p99 {row['p99_us']:>9.1f}  " if row.get("p99_us") else ""
        print(f"{time.monotonic() - begun:5.0f} s  {case:<66} {precision:<10} p50 {row['p50_us']:>9.1f} us  {p99}{limit}{row.get('note') or ''}", flush=True)

    if args.warm:
        warm(models, parts)
        print(f"{time.monotonic() - begun:5.0f} s  warm", flush=True)
    # Those that take longest to come by first. `start` needs the device's memory to be free of large models.
    first = {"jitter": lambda: jitter(vivace, add), "strict": lambda: strict(vivace, add), "start": lambda: start(add), "peers": lambda: beside(vivace, add, models), "budget": lambda: budget(vivace, add, models), "curves": lambda: curves(vivace, add, models), "states": lambda: states(vivace, add, models), "verified": lambda: verified(vivace, add, models), "gguf": lambda: gguf(vivace, add)}
    work = [(part, run) for part, run in first.items() if part in parts]
    work += [(f"{case[0]} {case[1]} kv={case[2]}", lambda case=case: steps(vivace, add, args.steps, *case)) for case in CASES if "cases" in parts]
    for name, run in work:
        if models and " kv=" in name and name.split()[0] not in models:
            continue
        try:
            run()
        except Exception as e:  # whatever it is, what comes behind it runs
            print(f"{name}: {e} {getattr(e, 'stderr', '')}", flush=True)  # no row: the receipt shows what ran
    print(r.write("bench").relative_to(ROOT))


if __name__ == "__main__":
    main()
