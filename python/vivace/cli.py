"""The command line: vivace run | demo | doctor | ops | plan | bench | calibrate | verify | pack | convert, each with --json."""
from __future__ import annotations

import argparse
import json
import resource
import sys
import time

DEFAULT_MODEL = "smollm2-135m-instruct"


def main(argv=None) -> int:
    args = parser().parse_args(argv)
    from vivace.errors import Error

    try:
        return args.run(args)
    except Error as e:
        print(f"vivace {args.command}: {e}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        sys.stderr.close()  # the reader left; nothing to tell it
        return 0


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(prog="vivace", description="Real-time inference for robots, agents and speech.")
    commands = top.add_subparsers(dest="command", required=True)

    def command(name, run, help):
        p = commands.add_parser(name, help=help, description=help)
        p.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        p.set_defaults(run=run)
        return p

    p = command("run", cmd_run, "Answer a prompt, streaming.")
    add_load_options(p)
    p.add_argument("prompt", nargs="?", help="the question; without one, each line of standard input is a turn of a chat")
    p.add_argument("--system", help="system message")
    p.add_argument("--max-tokens", type=int)
    p.add_argument("--temperature", type=float, default=0.0)
    p.add_argument("--top-k", type=int, default=0)
    p.add_argument("--top-p", type=float, default=1.0)
    p.add_argument("--min-p", type=float, default=0.0)
    p.add_argument("--repetition-penalty", type=float, default=1.0)
    p.add_argument("--seed", type=int, default=0)

    p = command("demo", cmd_demo, "Run a demonstration: `reach`, in which a policy moves an arm to what a sentence names.")
    p.add_argument("name", choices=["reach"])
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--precision", default="auto", help="auto, f32, bf16 or fp8")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--episodes", type=int, default=10)
    p.add_argument("--seed", type=int, default=0, help="of the first episode; each has its own scene")
    p.add_argument("--goal", metavar="COLOUR", help="what to reach in every scene; default: each scene's own")
    p.add_argument("-o", "--out", metavar="FILE", help="an animated PNG of up to four episodes: NAME.apng or NAME.png")
    command("doctor", cmd_doctor, "Check this machine: CPU, memory, driver, caches; say how to fix what is wrong.")
    p = command("ops", cmd_ops, "List every op with its ports, attributes and status on this machine.")
    p.add_argument("name", nargs="?", help="one op or alias")
    p.add_argument("--tactics", action="store_true", help="print the measured tiles of gemm instead, and their digest")
    p = command("tune", cmd_tune, "Time the tiles of gemm on this machine's GPU and write a table for VIVACE_TACTICS. Needs PyTorch.")
    p.add_argument("-o", "--output", required=True, help="the table to write")
    p.add_argument("--weight", action="append", required=True, metavar="NxK", help="rows x columns of a weight; may be given several times")
    p.add_argument("--tokens", default="8,16,32,64,256,512,1024,4096", help="up to how many tokens a row serves, one row each")
    p.add_argument("--dtype", action="append", default=[], choices=["bf16", "e4m3"], help="of weights and activations (default: both)")
    p = command("plan", cmd_plan, "Print the exact memory that a model needs.")
    add_load_options(p)
    p = command("bench", cmd_bench, "Time a model's decode step and prefill on this machine.")
    add_load_options(p)
    p.add_argument("--steps", type=int, default=128, help="decode steps to time")
    p.add_argument("--prompt-tokens", type=int, default=512, help="prompt length of the prefill row")
    p.add_argument("--batch", type=int, default=1, help="sequences that decode side by side")
    p.add_argument("--position", type=int, default=8, help="tokens of context before the first timed step")
    p.add_argument("--profile", action="store_true", help="also time the launches of a step, each kind by itself")
    p.add_argument("--trace", metavar="FILE", help="with --profile: the step as a trace that Perfetto opens")
    p.add_argument("--random-weights", action="store_true", help="weights of the shapes in the model's config.json, drawn where it runs")
    p = command("calibrate", cmd_calibrate, "Find the scales that --precision fp8_static needs, from prompts, and keep them.")
    p.add_argument("--model", default=DEFAULT_MODEL, help="file, directory or name of a fetched model")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--prompts", metavar="FILE", help="text, a prompt a line; default: a few that come with Vivace")
    p.add_argument("--percentile", type=float, default=100.0, help="of the magnitudes that a scale covers")
    p = command("verify", cmd_verify, "Say what a precision plan costs in accuracy: layer by layer, at the end, in perplexity.")
    p.add_argument("--model", default=DEFAULT_MODEL, help="file, directory or name of a fetched model")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--precision", required=True, help="the plan in question")
    p.add_argument("--against", default="bf16", help="the plan that it is compared with")
    p.add_argument("--text", metavar="FILE", help="what both read; default: a few prompts that come with Vivace")
    p = command("pack", cmd_pack, "Compile the ops' CUDA kernels into one file, for machines without NVRTC. Needs no GPU.")
    p.add_argument("-o", "--output", required=True, help="the pack to write, NAME.vvp")
    p.add_argument("--arch", action="append", required=True, metavar="sm_90a", help="a chip; may be given several times")
    p.add_argument("--op", action="append", default=[], help="an op; may be given several times (default: all)")
    p.add_argument("--jobs", type=int, default=0, help="compiles at a time (default: one a core)")
    p = command("convert", cmd_convert, "Convert a checkpoint: a hub folder to GGUF; GGUF, CTranslate2 or Orbax to a hub folder.")
    p.add_argument("source", help="folder with safetensors, .safetensors, .gguf, or folder of CTranslate2 (Whisper) or Orbax (pi0.5, pi0, pi0-FAST)")
    p.add_argument("target", help="a new .gguf file, or a new folder")
    p.add_argument("--dtype", default="auto", help="of matrices: q8_0 (auto), q4_0, q4_1, f16, bf16, f32 for GGUF; bf16 (auto), f16, f32, e4m3, e2m1 (NVFP4) for a folder")
    return top


def add_load_options(p) -> None:
    p.add_argument("--model", default=DEFAULT_MODEL, help="file, directory or name of a fetched model")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--precision", default="auto", help="auto, q8, f32, bf16, native, w8a16, w4a16, int4, fp8 or fp8_static")
    p.add_argument("--head", default="auto", help="what the head becomes: auto, plain, e4m3, e2m1, q8_0 or q4_0")
    p.add_argument("--invariance", default="class", choices=("class", "strict"), help="strict: a prompt's tokens have the bits of an answer's")
    p.add_argument("--kv-dtype", default="auto", help="auto, f16, bf16, f32 or e4m3")
    p.add_argument("--threads", type=int, default=0)
    p.add_argument("--context", type=int, default=0)
    p.add_argument("--max-batch", type=int, default=1)
    p.add_argument("--chunk", type=int, default=128)
    p.add_argument("--kv-pages", type=int, default=0, help="pages of 64 positions that all sequences share; 0: each has the whole context")
    p.add_argument("--resident-layers", type=int, default=-1, help="layers whose weights stay on the device; the others come from host memory in every step; -1: all")
    p.add_argument("--ahead", type=int, default=0, help="steps that may be queued at once; 0: as suits the device")


def load(args):
    import vivace

    return vivace.load_model(args.model, device=args.device, precision=args.precision, kv_dtype=args.kv_dtype,
                             threads=args.threads, context=args.context, max_batch=args.max_batch, chunk=args.chunk, ahead=args.ahead, kv_pages=args.kv_pages, resident_layers=args.resident_layers, head=args.head, invariance=args.invariance,
                             random_weights=getattr(args, "random_weights", False))


def peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


# ---- run -----------------------------------------------------------------------------------------

def cmd_run(args) -> int:
    with load(args) as model:
        messages = [{"role": "system", "content": args.system}] if args.system else []
        if args.prompt is not None:
            return answer(model, args, messages + [{"role": "user", "content": args.prompt}])[0]
        while True:
            if sys.stdin.isatty():
                print("> ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                return 0
            if not line.strip():
                continue
            messages.append({"role": "user", "content": line.rstrip("\n")})
            code, text = answer(model, args, messages)
            if code == 0:
                messages.append({"role": "assistant", "content": text})
            else:
                messages.pop()


def answer(model, args, messages) -> tuple[int, str]:
    """Streams one answer. Ctrl-C ends it cleanly: what was said stays, the summary still comes."""
    from vivace.model import Answer, _add

    prompt = messages if model.text.template else "\n".join(m["content"] for m in messages)
    start = time.perf_counter()
    out, code = Answer(), 0
    chunks = model.stream(prompt, max_tokens=args.max_tokens, temperature=args.temperature, top_k=args.top_k, top_p=args.top_p,
                          min_p=args.min_p, repetition_penalty=args.repetition_penalty, seed=args.seed)
    try:
        for c in chunks:
            _add(out, c.token, c.logprob, c.finish, time.perf_counter() - start)
            out.text += c.text
            if not args.json:
                print(c.text, end="", flush=True)
    except KeyboardInterrupt:
        chunks.close()
        out.finish, code = "cancelled", 130
    facts = {"finish": out.finish, "tokens": len(out.tokens),
             "first_token_ms": None if out.first_token_s is None else round(out.first_token_s * 1e3, 1),
             "tokens_per_s": None if out.tokens_per_s is None else round(out.tokens_per_s, 1), "peak_rss_mb": round(peak_rss_mb(), 1)}
    if args.json:
        print(json.dumps({"text": out.text, **facts}), flush=True)
    else:
        if not out.text.endswith("\n"):
            print(flush=True)
        rate = "" if facts["tokens_per_s"] is None else f", {facts['tokens_per_s']} tokens/s"
        first = "" if facts["first_token_ms"] is None else f"first token {facts['first_token_ms']} ms, "
        print(f"[{first}{facts['tokens']} tokens{rate}, peak memory {facts['peak_rss_mb']} MB, finish: {out.finish}]", file=sys.stderr)
    return code, out.text


# ---- demo ----------------------------------------------------------------------------------------

def cmd_demo(args) -> int:
    from vivace.demo import reach

    facts = reach.show(device=args.device, precision=args.precision, threads=args.threads, episodes=args.episodes, seed=args.seed, goal=args.goal,
                       out=args.out, say=None if args.json else lambda line: print(line, flush=True))
    if args.json:
        print(json.dumps(facts))
    return 0


# ---- doctor --------------------------------------------------------------------------------------

def cmd_doctor(args) -> int:
    from vivace.doctor import examine

    rows = examine()
    if args.json:
        print(json.dumps({"checks": rows}))
    else:
        for r in rows:
            print(f"{r['status']:<5} {r['check']:<18} {r['found']}" + (f"\n      fix: {r['fix']}" if r["fix"] else ""))
    return 1 if any(r["status"] == "FAIL" for r in rows) else 0


# ---- ops -----------------------------------------------------------------------------------------

def cmd_ops(args) -> int:
    from vivace import ops
    from vivace.errors import NotFoundError

    if args.tactics:
        return print_tactics(args)
    table = ops.ops_table()
    where = {r["name"]: "composite" if r["composite"] else "cpu, cuda" if r["gpu"] else "cpu" for r in table["ops"]}
    rows = [{"name": r["name"], "kind": "op", "runs": where[r["name"]], "brief": r["brief"]} for r in table["ops"]]
    rows += [{"name": a["name"], "kind": "alias", "runs": where[a["op"]], "brief": f"{a['op']}({a['attrs']})"} for a in table["aliases"]]
    if args.name:
        rows = [r for r in rows if r["name"] == args.name]
        if not rows:
            raise NotFoundError(f"no op named {args.name!r}; `vivace ops` lists them")
    if args.json:
        specs = {r["name"]: r for r in table["ops"]}
        print(json.dumps({"ops": [r | {"spec": specs.get(r["name"])} for r in rows], "dtypes": table["dtypes"]}))
    elif args.name:
        print(getattr(ops, args.name).__doc__)
    else:
        width = max(len(r["name"]) for r in rows)
        for r in rows:
            print(f"{r['name']:<{width}}  {r['kind']:<5}  {r['runs']:<9}  {r['brief']}")
    return 0


def print_tactics(args) -> int:
    from vivace import _core

    text, digest = _core.gemm_tactics(), _core.gemm_tactics_digest()
    if args.json:
        rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
        names = ("dtype", "N", "K", "T", "rows", "tokens", "share_x", "share_w", "us")
        print(json.dumps({"gemm": [dict(zip(names, r[:1] + [float(v) if "." in v else int(v) for v in r[1:]])) for r in rows], "digest": digest}))
    else:
        print(text + f"# digest {digest}")
    return 0


def cmd_tune(args) -> int:
    from vivace import tune

    rows = tune.gemm(tune.weights(args.weight), tune.counts(args.tokens), args.dtype or ["bf16", "e4m3"], say=lambda line: print(line, file=sys.stderr))
    with open(args.output, "w") as f:
        f.write(rows)
    print(json.dumps({"output": args.output, "rows": rows.count("\n") - 1}) if args.json else f"wrote {args.output}; use it with VIVACE_TACTICS={args.output}")
    return 0


# ---- plan ----------------------------------------------------------------------------------------

def cmd_plan(args) -> int:
    with load(args) as model:
        lines, report = model.memory(), model.report()
    total = sum(b for _, b in lines)
    if args.json:
        print(json.dumps({"regions": [{"name": n, "bytes": b} for n, b in lines], "total_bytes": total, "report": report}))
        return 0
    caches = [(n, b) for n, b in lines if n.startswith(("k_cache.", "v_cache."))]
    for name, size in [(n, b) for n, b in lines if (n, b) not in caches] + [(f"kv cache ({len(caches)} regions)", sum(b for _, b in caches))]:
        print(f"{size:>15,}  {name}")
    print(f"{total:>15,}  total bytes ({report['family']}, {report['precision']}, kv {report['kv_dtype']}, context {report['context']}, batch {report['max_batch']})")
    return 0


# ---- pack ----------------------------------------------------------------------------------------

def cmd_pack(args) -> int:
    from vivace import pack

    def progress(done, total, kernel):
        if sys.stderr.isatty():
            print(f"\r{done}/{total}", end="" if done < total else "\n", file=sys.stderr, flush=True)

    facts = pack.build(args.output, args.arch, args.op, jobs=args.jobs, progress=progress)
    if args.json:
        print(json.dumps(facts))
    else:
        print(f"{facts['path']}: {facts['kernels']} kernels for {', '.join(facts['archs'])}, {facts['bytes']:,} bytes, {facts['seconds']} s")
    return 0


# ---- bench ---------------------------------------------------------------------------------------

def cmd_bench(args) -> int:
    from pathlib import Path

    from vivace.bench import bench_text_model, profile_rows, trace
    from vivace.errors import InvalidArgumentError, NotFoundError

    if args.trace and not args.profile:
        raise InvalidArgumentError("--trace writes what --profile times; give both")
    if args.trace and not Path(args.trace).absolute().parent.is_dir():
        raise NotFoundError(f"--trace: there is no folder {Path(args.trace).parent}")
    args.max_batch = max(args.max_batch, args.batch)
    start = time.perf_counter()
    with load(args) as model:
        load_s = time.perf_counter() - start
        rows = bench_text_model(model, steps=args.steps, prompt_tokens=args.prompt_tokens, batch=args.batch, position=args.position)
        report = model.report()
        profile = model.profile(rows=args.batch, position=min(args.position, report["context"] - 1)) if args.profile else None
    bytes_per_s = None
    if profile and report["device"] != "cpu":
        from vivace import device

        bytes_per_s = device.info(int(report["device"].split(":")[1]))["peak_bytes_per_s"]
    groups = profile_rows(profile, bytes_per_s) if profile else []
    if args.trace:
        with open(args.trace, "w") as f:
            json.dump(trace(profile), f)
    if args.json:
        print(json.dumps({"rows": rows, "load_s": load_s, "peak_rss_mb": peak_rss_mb(), **({"profile": {"step_us": profile["step_us"], "groups": groups}} if profile else {})}))
        return 0
    for r in rows:
        print(f"{r['case']:<70} p50 {r['p50_us']:>10.1f} us  p99 {r['p99_us']:>10.1f} us  {r['note']}")
    for g in groups:
        share = "" if g["share"] is None else f"  {100 * g['share']:>5.1f} %"
        print(f"{g['op']:<14} x {g['launches']:>3}  {g['bytes']:>12,} bytes  {g['us']:>8.2f} us  {g['total_us']:>9.1f} us in all  {g['gb_per_s']:>7.0f} GB/s{share}")
    if profile:
        print(f"sum {sum(g['total_us'] for g in groups):.1f} us, the step {profile['step_us']:.1f} us, {len(profile['order'])} launches")
    return 0


# ---- calibrate -----------------------------------------------------------------------------------

def cmd_calibrate(args) -> int:
    from pathlib import Path

    from vivace import calibrate
    from vivace.errors import NotFoundError
    from vivace.model import find_compiler, resolve

    try:
        prompts = None if args.prompts is None else [line for line in Path(args.prompts).read_text().splitlines() if line.strip()]
    except OSError as e:
        raise NotFoundError(f"{args.prompts}: {e.strerror}") from e
    find_compiler(args.device)
    scales = calibrate.act_scales(resolve(args.model), prompts, percentile=args.percentile, device=args.device)
    if args.json:
        print(json.dumps({"plan": calibrate.PLAN, "percentile": args.percentile, "act_scales": scales}))
    else:
        print(f"{len(scales)} scales, {min(scales):.3g} to {max(scales):.3g}, kept for precision {calibrate.PLAN}")
    return 0


# ---- verify --------------------------------------------------------------------------------------

def cmd_verify(args) -> int:
    from pathlib import Path

    from vivace.errors import NotFoundError
    from vivace.verify import verify

    try:
        prompts = None if args.text is None else [Path(args.text).read_text()]
    except OSError as e:
        raise NotFoundError(f"{args.text}: {e.strerror}") from e
    r = verify(args.model, precision=args.precision, against=args.against, prompts=prompts, device=args.device)
    if args.json:
        print(json.dumps(r))
        return 0
    for row in r["layers"]:
        print(f"{row['place']:>4} {row['op']:<10} error {row['error']:.2e}")
    print(f"{args.precision} against {args.against}, {r['tokens']} tokens: logits {r['logits_error']:.2e} relative, {r['row_error']:.2e} in the median row, {r['max_error']:.3g} at most; divergence {r['divergence']:.2e}; "
          f"same choice {r['same_choice']:.1%}; perplexity {r['perplexity']:.4g} against {r['perplexity_against']:.4g} ({r['perplexity_change']:+.2%})")
    return 0


# ---- convert -------------------------------------------------------------------------------------

def cmd_convert(args) -> int:
    from vivace.convert import convert

    facts = convert(args.source, args.target, dtype=args.dtype)
    print(json.dumps(facts) if args.json else f"{args.target}: {facts['tensors']} tensors, {facts['bytes']:,} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
