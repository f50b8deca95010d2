"""The command line: vivace run | transcribe | listen | chat | serve | serve-policy | pull | list | rm | demo | top | profile | trace-sched | doctor | ops | plan | bench | calibrate | verify | pack | convert, each with --json."""
from __future__ import annotations

import argparse
import json
import os
import resource
import sys
import time
import warnings
from contextlib import nullcontext

DEFAULT_MODEL = "smollm2-135m-instruct"
KV_BLOCK = 64  # positions


def main(argv=None) -> int:
    argv = sys.argv[1:] if argv is None else list(argv)
    if argv[:2] == ["bench", "serve"]:  # a command of its own, with options of its own
        argv[:2] = ["bench-serve"]
    for stream in (sys.stdout, sys.stderr):  # a letter that the terminal cannot show is no reason to end an answer
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(errors="surrogateescape")  # a bad byte is the prompt's error, not the reader's
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: print(f"vivace: {message}", file=sys.stderr)
            args = (top := parser()).parse_args(argv)
            if args.command is None:  # who types the name alone asks what there is
                top.print_help()
            code = 0 if args.command is None else args.run(args)
            sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BrokenPipeError:
        _drop_output()  # the reader left; nothing to tell it
        return 0
    except Exception as e:
        if (failure := described(e)) is None:
            raise  # a mistake of ours: the traceback is what helps
        return report(*failure, as_json="--json" in argv)


def described(e: Exception) -> tuple[str, str] | None:
    """(code, message) of an error that is no mistake of this program; docs/errors.md has the codes."""
    from vivace.errors import Error

    if isinstance(e, Error):
        return e.code or "Internal", str(e)
    if isinstance(e, MemoryError):
        return "OutOfMemory", "this machine has no memory left; lower context or max_batch, or take a smaller precision"
    if isinstance(e, OSError):
        where = e.filename if e.filename is not None else "standard output"
        return "NotFound" if isinstance(e, (FileNotFoundError, NotADirectoryError)) else "IoError", f"{where}: {e.strerror or e}"
    return None


def report(code: str, message: str, *, as_json: bool, status: int = 1) -> int:
    """One line on standard error; with --json the same as an object on standard output."""
    from vivace.files import printable

    try:
        print(f"error[{code}]: {printable(message, 4000)}", file=sys.stderr, flush=True)
        if as_json:
            print(json.dumps({"error": {"code": code, "message": message}}), flush=True)
    except OSError:
        _drop_output()
    return status


def _drop_output() -> None:
    """What is still buffered goes nowhere, or the interpreter would fail over it at its end."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    except (OSError, ValueError):
        pass


class Parser(argparse.ArgumentParser):
    """Its errors have the form of all others, with status 2."""

    def error(self, message):
        self.print_usage(sys.stderr)
        self.exit(report("InvalidArgument", message, as_json="--json" in sys.argv, status=2))


def whole(low: int, high: int):
    """Of an option: a whole number of a range, which the engine's own type has."""
    def read(text):
        try:
            n = int(text)
        except ValueError:
            n = None
        if n is None or not low <= n <= high:
            raise argparse.ArgumentTypeError(f"wanted a whole number from {low} to {high}, got {text[:40]!r}")
        return n

    return read


COUNT = whole(-(1 << 31), (1 << 31) - 1)
SEED = whole(0, (1 << 63) - 1)


def _pages(text: str):
    return text if text in ("auto", "full") else COUNT(text)


def parser() -> argparse.ArgumentParser:
    from vivace import cli_policy, cli_profile, cli_sched, cli_together

    top = Parser(prog="vivace", description="Real-time inference for robots and agents.")
    from vivace import __version__

    top.add_argument("--version", action="version", version=f"vivace {__version__}")
    commands = top.add_subparsers(dest="command")

    def command(name, run, help):
        p = commands.add_parser(name, help=help, description=help)
        p.add_argument("--json", action="store_true", help="print one JSON object instead of text")
        p.set_defaults(run=run)
        return p

    p = command("run", cmd_run, "Answer a prompt, streaming; of a robot's policy: the actions for an observation.")
    add_load_options(p)
    p.add_argument("prompt", nargs="?", help="the question; without one, each line of standard input is a turn of a chat")
    p.add_argument("--system", help="system message")
    p.add_argument("--max-tokens", type=COUNT)
    p.add_argument("--temperature", type=float, default=0.0)
    p.add_argument("--top-k", type=COUNT, default=0)
    p.add_argument("--top-p", type=float, default=1.0)
    p.add_argument("--min-p", type=float, default=0.0)
    p.add_argument("--repetition-penalty", type=float, default=1.0)
    p.add_argument("--seed", type=SEED, default=0)
    cli_policy.add_observations(p)

    from vivace.speech import command as speech

    speech.add_options(command("transcribe", speech.run, "Write down what a sound file says, as text, subtitles or JSON."), COUNT)

    from vivace.speech import listen

    listen.add_options(command("listen", listen.run, "Write down what is said into a microphone, or a file at the pace at which it plays, while it is said."), COUNT)

    p = command("chat", cmd_chat, "Talk with a model: line editing, history, /commands, a context that slides. Needs pip install 'vivace[chat]', or pipes, or --plain.")
    add_load_options(p, positional=True)
    p.add_argument("--system", help="system message")
    p.add_argument("--plain", action="store_true", help="read lines as they come: no line editing, no history")
    p.add_argument("--no-history", action="store_true", help="keep nothing of what is typed for other chats")
    p.add_argument("--max-tokens", type=COUNT, help="of an answer; default: 512")
    for name in ("temperature", "top-p", "min-p", "repetition-penalty", "presence-penalty", "frequency-penalty"):
        p.add_argument(f"--{name}", type=float)
    p.add_argument("--top-k", type=COUNT)
    p.add_argument("--seed", type=SEED)
    p.add_argument("--enable-thinking", action=argparse.BooleanOptionalAction, help="for checkpoints whose chat template has the switch")

    p = command("pull", cmd_pull, "Put a model among those that Vivace keeps: one it can fetch by name, a folder or file, or one of a Hugging Face cache. Downloads nothing from a hub.")
    p.add_argument("source", help="a name of `vivace list`, a folder in Hugging Face's layout, a .gguf or .safetensors file")
    p.add_argument("--name", help="what it is called from then on; default: the folder's or file's name")
    p.add_argument("--digest", help="what its files must be, as an earlier pull printed it")
    p = command("list", cmd_list, "List models: those that Vivace keeps, those of Hugging Face caches on this machine, those that can be fetched.")
    p.add_argument("--verify", action="store_true", help="read every file of kept models and compare digests")
    p = command("rm", cmd_rm, "Remove models that Vivace keeps. Hugging Face caches are never written.")
    p.add_argument("name", nargs="+", help="names of `vivace list`")

    p = command("serve", cmd_serve, "Serve a model to any OpenAI client over HTTP. Needs pip install 'vivace[serve]'.")
    add_load_options(p, positional=True, max_batch=4)
    p.add_argument("--host", default="127.0.0.1", help="address to listen on; others than loopback want a key")
    p.add_argument("--port", type=whole(0, 65535), default=8000, help="0: any that is free")
    p.add_argument("--name", help="what clients call the model; default: the name or file it was loaded by")
    p.set_defaults(model=None, parser=p)
    p.add_argument("--speech", metavar="MODEL", help="a Whisper for /v1/audio and /v1/realtime, folder or name of a fetched one: beside the model, or alone where none is named")
    speech.add_calibration(p)
    p.add_argument("--speech-windows", type=COUNT, default=1, metavar="N", help="windows of 30 s of its sessions and files that are computed together, at most 64: more for many sessions on a GPU")
    p.add_argument("--api-key", action="append", default=[], metavar="KEY", help="a key that clients must send; others can read it in the list of processes: prefer --api-key-file or VIVACE_API_KEY")
    p.add_argument("--api-key-file", metavar="FILE", help="keys, one a line; the file must be readable by its owner alone")
    p.add_argument("--no-auth", action="store_true", help="listen beyond loopback without a key, and under any name")
    p.add_argument("--allow-host", action="append", default=[], metavar="NAME", help="a name under which a server without keys may be asked, besides localhost")
    p.add_argument("--cors-origin", action="append", default=[], metavar="ORIGIN", help="a page that may ask from a browser")
    p.add_argument("--max-waiting", type=whole(0, 65536), default=64, help="answers that may wait besides the --max-batch that are made; more get 429")
    p.add_argument("--priority-ageing", type=float, default=10.0, metavar="S", help="seconds after which a waiting request of priority batch counts as interactive; 0: never")
    p.add_argument("--temperature", type=float, help="of requests that do not say; default: generation_config.json's, else 1")
    p.add_argument("--top-p", type=float, help="of requests that do not say; default: generation_config.json's, else 1")
    p.add_argument("--no-generation-config", action="store_true", help="requests that do not say get OpenAI's defaults, whatever the checkpoint's generation_config.json says")
    p.add_argument("--seed", type=SEED, help="of requests that do not say; default: another one each")
    p.add_argument("--limit", action="append", default=[], metavar="NAME=VALUE", help="of docs/serving.md, for instance body_bytes=8388608; may be given several times")
    p.add_argument("--capsule-key-file", metavar="FILE", help="at least 16 bytes, of mode 600, that replicas share: capsules may then be taken from this server and brought to another")
    p.add_argument("--linger", type=float, default=0.0, metavar="S", help="after SIGTERM, how long new requests are still accepted and told 503")
    p.add_argument("--drain", type=float, default=30.0, metavar="S", help="after that, how long answers may take to end")
    cli_together.add_policy(p, whole)

    p = command("demo", cmd_demo, "Run a demonstration: `reach`, in which a policy moves an arm to what a sentence names; `arm`, in which it does so at 30 Hz in MuJoCo over a link that is slow and breaks; `colocate`, in which one keeps its time beside a language model; `voice`, in which a spoken sentence is heard, answered and obeyed.")
    p.add_argument("name", choices=["reach", "arm", "colocate", "voice"])
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--precision", default="auto", help="auto, f32, bf16 or fp8")
    p.add_argument("--threads", type=COUNT, default=0)
    p.add_argument("--episodes", type=COUNT, default=10)
    p.add_argument("--seed", type=SEED, default=0, help="of the first episode; each has its own scene")
    p.add_argument("--goal", metavar="COLOUR", help="what to reach in every scene; default: each scene's own")
    p.add_argument("-o", "--out", metavar="FILE", help="of reach and arm an animated PNG of the first episodes, NAME.apng or NAME.png; of arm also targets and latencies, NAME.svg; of colocate the timeline with gates, NAME.json for Perfetto, NAME.svg or NAME.html; of voice who worked when, NAME.svg")
    p.add_argument("--model", default=DEFAULT_MODEL, help="of colocate and voice: the language model")
    p.add_argument("--say", metavar="TEXT", help="of voice: the sentence, which espeak-ng says")
    p.add_argument("--sound", metavar="FILE", help="of voice: a sound file instead")
    p.add_argument("--speech", default="whisper-tiny.en", metavar="MODEL", help="of voice: the Whisper that hears")
    p.add_argument("--pace", type=float, default=1.0, help="of voice: seconds of sound a second, 0: as fast as it goes; of arm: seconds of the robot a second")
    p.add_argument("--link", default="all", help="of arm: clean, far, lossy or cut; all: in turn")
    p.add_argument("--cameras", default="auto", help="of arm: gl, rendered by MuJoCo, or drawn; auto: gl where there is one")
    p.add_argument("--calls", type=COUNT, default=50, help="of colocate: calls of each run")
    p.add_argument("--hz", type=float, default=0.0, help="of colocate: calls a second; 0: 5 on the CPU, else 30")
    p = command("top", cli_sched.cmd_top, "Show the tenants of this user's schedulers: share, times, misses, bytes.")
    cli_sched.add_top(p)
    cli_profile.add(command)
    p = command("trace-sched", cli_sched.cmd_trace, "Draw what a scheduler's tenants did, from a trace that it saved.")
    cli_sched.add_trace(p)
    cli_policy.add_serve(command("serve-policy", cli_policy.cmd_serve, "Serve a robot's policy over a websocket, as openpi's server does."), COUNT, whole)
    command("doctor", cmd_doctor, "Check this machine: CPU, memory, driver, caches; say how to fix what is wrong.")
    p = command("ops", cmd_ops, "List every op with its ports, attributes and status on this machine.")
    p.add_argument("name", nargs="?", help="one op or alias")
    p.add_argument("--tactics", action="store_true", help="print the measured tiles of gemm instead, and their digest")
    p = command("tune", cmd_tune, "Time the tiles of gemm on this machine's GPU and write a table for VIVACE_TACTICS. Needs PyTorch.")
    p.add_argument("-o", "--output", required=True, help="the table to write")
    p.add_argument("--weight", action="append", required=True, metavar="NxK", help="rows x columns of a weight; may be given several times")
    p.add_argument("--tokens", default="8,16,32,64,256,512,1024,4096", help="up to how many tokens a row serves, one row each")
    p.add_argument("--dtype", action="append", default=[], choices=["bf16", "e4m3"], help="of weights and activations (default: both)")
    p = command("plan", cmd_plan, "Print the exact memory that a model, or a robot's policy, needs.")
    add_load_options(p)
    p = command("bench", cmd_bench, "Time a model's decode step and prefill, or a robot's policy, on this machine.")
    add_load_options(p)
    p.add_argument("--steps", type=COUNT, default=128, help="decode steps to time")
    p.add_argument("--prompt-tokens", type=COUNT, default=512, help="prompt length of the prefill row")
    p.add_argument("--batch", type=COUNT, default=1, help="sequences that decode side by side")
    p.add_argument("--position", type=COUNT, default=8, help="tokens of context before the first timed step")
    p.add_argument("--profile", action="store_true", help="also time the launches of a step, each kind by itself")
    p.add_argument("--trace", metavar="FILE", help="with --profile: the step as a trace that Perfetto opens")
    p.add_argument("--random-weights", action="store_true", help="weights of the shapes in the model's config.json, drawn where it runs")
    from vivace import bench_serve

    bench_serve.add_options(command("bench-serve", bench_serve.run, "`vivace bench serve`: time a server under load that does not wait for it."), COUNT)
    p = command("calibrate", cmd_calibrate, "Find the scales that --precision fp8_static needs, from prompts, a Whisper's from sound, or a policy's from observations, and keep them.")
    p.add_argument("--model", default=DEFAULT_MODEL, help="file, directory or name of a fetched model")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--prompts", metavar="FILE", help="text, a prompt a line; default: a few that come with Vivace")
    p.add_argument("--sound", action="append", metavar="FILE", help="of a Whisper: what is heard; may be given several times")
    p.add_argument("--percentile", type=float, default=100.0, help="of the magnitudes that a scale covers")
    cli_policy.add_observations(p)
    p = command("verify", cmd_verify, "Say what a precision plan costs in accuracy: layer by layer, at the end, in perplexity; of a robot's policy stage by stage and in its actions.")
    p.add_argument("--model", default=DEFAULT_MODEL, help="file, directory or name of a fetched model")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--precision", required=True, help="the plan in question")
    p.add_argument("--against", default="bf16", help="the plan that it is compared with")
    p.add_argument("--text", metavar="FILE", help="what both read; default: a few prompts that come with Vivace")
    p.add_argument("--context", type=COUNT, default=0, help="tokens of the text that are read; 0: as many as there are, at most 512")
    cli_policy.add_observations(p)
    p = command("pack", cmd_pack, "Compile the ops' CUDA kernels into one file, for machines without NVRTC. Needs no GPU.")
    p.add_argument("-o", "--output", required=True, help="the pack to write, NAME.vvp")
    p.add_argument("--arch", action="append", required=True, metavar="sm_90a", help="a chip; may be given several times")
    p.add_argument("--op", action="append", default=[], help="an op; may be given several times (default: all)")
    p.add_argument("--jobs", type=COUNT, default=0, help="compiles at a time (default: one a core)")
    p = command("convert", cmd_convert, "Convert a checkpoint: a hub folder to GGUF; GGUF, CTranslate2 or Orbax to a hub folder.")
    p.add_argument("source", help="folder with safetensors, .safetensors, .gguf, or folder of CTranslate2 (Whisper) or Orbax (pi0.5, pi0, pi0-FAST)")
    p.add_argument("target", help="a new .gguf file, or a new folder")
    p.add_argument("--dtype", default="auto", help="of matrices: q8_0 (auto), q4_0, q4_1, q5_0, q5_1, q4_k, q5_k, q6_k, f16, bf16, f32 for GGUF; bf16 (auto), f16, f32, e4m3, e2m1 (NVFP4) for a folder")
    return top


def add_load_options(p, *, positional=False, max_batch=1) -> None:
    p.add_argument("model" if positional else "--model", **({"nargs": "?"} if positional else {}), default=DEFAULT_MODEL, help="file, directory or name of a fetched model")
    p.add_argument("--device", default="auto", help="auto, cpu, cuda or cuda:N")
    p.add_argument("--precision", default="auto", help="auto, q8, f32, bf16, native, w8a16, w4a16, int4, fp8 or fp8_static")
    p.add_argument("--lm-head-dtype", default="auto", help="what the head becomes: auto, plain, e4m3, e2m1, q8_0 or q4_0")
    p.add_argument("--invariance", default="class", choices=("class", "strict"), help="strict: a prompt's tokens have the bits of an answer's")
    p.add_argument("--kv-dtype", default="auto", help="auto, f16, bf16, f32 or e4m3")
    p.add_argument("--threads", type=COUNT, default=0)
    p.add_argument("--context", type=COUNT, default=0)
    p.add_argument("--max-batch", type=COUNT, default=max_batch)
    p.add_argument("--max-image-tokens", type=COUNT, default=0, help="of models that see: most tokens of an image; 0: 1280")
    p.add_argument("--prefill-chunk", type=COUNT, default=0)
    p.add_argument("--num-kv-blocks", type=_pages, default="auto", help="pages of 64 positions that all sequences share: auto, full or a number; 0: each has the whole context")
    p.add_argument("--mtp", type=whole(0, 4), default=0, help="tokens that the checkpoint's own draft layer guesses a step (Qwen3.5, Qwen3.6), which the next step checks; needs --max-batch above it")
    p.add_argument("--decode-layers", default="auto", choices=("auto", "on", "off"), help="whether a step of one token is one launch for all layers: auto (where that was seen to win), on, off")
    p.add_argument("--state-cache-bytes", type=whole(0, (1 << 63) - 1), default=None, help="of models with a recurrent state, memory for states that are kept beside KV blocks; 0: none; default: 16 and 4 a sequence, in at most 1 GiB")
    p.add_argument("--gpu-layers", type=COUNT, default=-1, help="layers whose weights stay on the device; the others come from host memory in every step; -1: all")
    p.add_argument("--max-in-flight-steps", type=COUNT, default=0, help="steps that may be queued at once; 0: as suits the device")


def load(args, load_model=None, **more):
    import vivace
    from vivace import cli_policy

    cli_policy.refuse(args)
    cores = len(os.sched_getaffinity(0))
    if args.threads > cores:
        warnings.warn(f"--threads: {args.threads} threads share the {cores} cores of this process, and wait for each other")
    model = (load_model or vivace.load_model)(args.model, device=args.device, precision=args.precision, kv_dtype=args.kv_dtype,
                              threads=args.threads, context=args.context, max_batch=args.max_batch, prefill_chunk=args.prefill_chunk, max_in_flight_steps=args.max_in_flight_steps, num_kv_blocks=args.num_kv_blocks, state_cache_bytes=args.state_cache_bytes, mtp=args.mtp, decode_layers=args.decode_layers, gpu_layers=args.gpu_layers, lm_head_dtype=args.lm_head_dtype, invariance=args.invariance, max_image_tokens=args.max_image_tokens,
                              random_weights=getattr(args, "random_weights", False), **more)
    if args.gpu_layers > (layers := model.report()["layers"]):
        warnings.warn(f"--gpu-layers: {args.gpu_layers} asked for, the model has {layers}: all stay")
    return model


def peak_rss_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


# ---- run -----------------------------------------------------------------------------------------

def cmd_run(args) -> int:
    from vivace.conversation import Conversation, reply
    from vivace import cli_policy
    from vivace.repl import forgot, show

    if cli_policy.is_policy(args):
        return cli_policy.run(args)
    cli_policy.no_observations(args)
    drawn = {"max_tokens": args.max_tokens, **{n: getattr(args, n) for n in ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "seed")}}
    with load(args) as model:
        if args.prompt is not None:
            messages = [{"role": "system", "content": args.system}] * bool(args.system) + [{"role": "user", "content": args.prompt}]
            prompt = messages if model.text.template else "\n".join(m["content"] for m in messages)
            answer, _ = show(model.stream(prompt, **drawn), as_json=args.json)
            return 130 if answer.finish == "cancelled" else 0
        chat = Conversation(args.system)
        while True:
            if sys.stdin.isatty():
                print("> ", end="", file=sys.stderr, flush=True)
            line = sys.stdin.readline()
            if not line:
                return 0
            if not line.strip():
                continue
            kept = list(chat.turns)
            chat.say(line.rstrip("\n"))
            try:
                answer, _ = show(reply(model, chat, drawn, forgot=forgot), as_json=args.json)
                chat.answered(answer.text)
            except Exception as e:  # a line that no model takes is reported and left out
                chat.turns = kept
                if (failure := described(e)) is None or not hasattr(e, "code"):
                    raise
                report(*failure, as_json=args.json)


def cmd_chat(args) -> int:
    from vivace import lines, repl

    if sys.stdin.isatty() and not args.plain:
        source = lines.Terminal("> ", [f"/{c}" for c in repl.COMMANDS], None if args.no_history else lines.history_file())
    else:
        source = lines.Piped(sys.stdin, "> " if sys.stdin.isatty() else "")
    params = {n: getattr(args, n) for n in repl.PARAMS if getattr(args, n) is not None}
    with load(args) as model:
        if sys.stdin.isatty():
            facts = model.report()
            print(f"{facts['family']} on {facts['device']}, precision {facts['precision']}, context {facts['context']}; /help says what there is, Ctrl-D ends", file=sys.stderr)
        return repl.Repl(model, system=args.system, params=params, as_json=args.json).run(source)


# ---- pull, list, rm --------------------------------------------------------------------------------

def cmd_pull(args) -> int:
    from vivace import store

    facts = store.pull(args.source, name=args.name, digest=args.digest)
    print(json.dumps(facts) if args.json else f"{facts['name']}: {facts['path']}\n{facts['bytes']:,} bytes, digest {facts['digest']}")
    return 0


def cmd_list(args) -> int:
    from vivace import store
    from vivace.files import printable

    rows = store.models(verify=args.verify)
    if args.json:
        print(json.dumps({"models": rows}))
        return 1 if any(r["state"] == "changed" for r in rows) else 0
    width = max(len(printable(r["name"])) for r in rows)
    for r in rows:
        size = "" if r["bytes"] is None else f"{r['bytes'] / 1e6:,.0f} MB"
        print(f"{printable(r['name']):<{width}}  {r['kind']:<9} {size:>10}  {r['state']:<10} {printable(r['path'] or '', 4096)}".rstrip())
    return 1 if any(r["state"] == "changed" for r in rows) else 0


def cmd_rm(args) -> int:
    from vivace import store

    facts = [store.remove(name) for name in args.name]
    print(json.dumps({"removed": facts}) if args.json else "\n".join(f"{f['name']}: {f['bytes']:,} bytes freed" for f in facts))
    return 0


# ---- serve ---------------------------------------------------------------------------------------

def cmd_serve(args) -> int:
    from vivace import cli_together
    from vivace.errors import InvalidArgumentError, UnsupportedError

    try:
        from vivace.server import auth, run
    except ImportError as e:
        raise UnsupportedError(f"serve: {e.name} is not installed; pip install 'vivace[serve]'") from e
    keys = auth.read_keys(args.api_key, args.api_key_file)
    limits = run.check(args, keys)
    cli_together.check(args)
    if (alone := _hears_alone(args)) is not None:
        name = args.name or os.path.basename(alone.rstrip("/"))

        def speech_model(load_model):
            return load_model(_speech_path(alone), device=args.device, precision=args.precision, calibration=args.calibration, threads=args.threads, **_windows(args))

        with cli_together.loaded(args, name, speech_model) as (speech, scheduler):
            return run.serve(None, args, name=name, keys=keys, limits=limits, speech=speech, scheduler=scheduler)
    if args.calibration:
        raise InvalidArgumentError("--calibration: sound for --precision fp8_static of a speech model that is served alone")
    args.model = args.model or DEFAULT_MODEL
    name = args.name or os.path.basename(args.model.rstrip("/")).removesuffix(".gguf")

    def text_model(load_model):
        return load(args, load_model, logit_bias=True, max_waiting=args.max_waiting, priority_ageing=args.priority_ageing, generation_config=not args.no_generation_config)

    with cli_together.loaded(args, name, text_model) as (model, scheduler), _speech(args, scheduler) as speech:
        return run.serve(model, args, name=name, keys=keys, limits=limits, speech=speech, scheduler=scheduler)


_OF_TEXT = ("lm_head_dtype", "invariance", "kv_dtype", "context", "max_batch", "prefill_chunk", "num_kv_blocks", "state_cache_bytes", "mtp", "decode_layers", "gpu_layers", "max_in_flight_steps", "max_waiting", "priority_ageing", "temperature", "top_p", "no_generation_config",
            "seed", "capsule_key_file")  # options of `serve` that say nothing of a speech model


def _hears_alone(args) -> str | None:
    """The speech model that is served without a language model, as it was named. Errors: InvalidArgumentError for options that it has no use for."""
    from vivace.errors import InvalidArgumentError
    from vivace.model import resolve
    from vivace.speech import is_speech

    alone = args.speech if args.model is None else args.model if is_speech(resolve(args.model)) else None
    if alone is None:
        return None
    if args.model is not None and args.speech is not None:
        raise InvalidArgumentError(f"--speech {args.speech}: {args.model} is a speech model already; one process serves one")
    if given := [n for n in _OF_TEXT if getattr(args, n) != args.parser.get_default(n)]:
        raise InvalidArgumentError(f"--{given[0].replace('_', '-')}: says something of a language model, and {alone} is served alone")
    return alone


def _windows(args) -> dict:
    return {"windows": args.speech_windows, "rows": max(5, min(64, args.speech_windows))}


def _speech_path(name: str) -> str:
    from vivace.errors import UnsupportedError
    from vivace.model import resolve
    from vivace.speech import is_speech

    if not is_speech(path := resolve(name)):
        raise UnsupportedError(f"--speech {name}: no speech model; python -m vivace.fetch whisper-tiny.en gets one")
    return path


def _speech(args, scheduler):
    """The speech model beside the other, or nothing. Under a scheduler it is a tenant too."""
    if args.speech is None:
        return nullcontext()
    import vivace

    path = _speech_path(args.speech)
    if scheduler is None:
        return vivace.load_model(path, device=args.device, threads=args.threads, **_windows(args))
    return scheduler.load_model(path, name="speech", qos=vivace.burstable(), threads=args.threads, **_windows(args))


# ---- demo ----------------------------------------------------------------------------------------

def cmd_demo(args) -> int:
    say = None if args.json else lambda line: print(line, flush=True)
    if args.name == "colocate":
        from vivace.demo import colocate

        facts = colocate.show(device=args.device, model=args.model, calls=args.calls, hz=args.hz, threads=args.threads, trace=args.out, say=say)
    elif args.name == "voice":
        from vivace.demo import voice

        facts = voice.show(sentence=voice.SENTENCE if args.say is None else args.say, sound=args.sound, device=args.device, threads=args.threads, seed=args.seed, pace=args.pace, model=args.model,
                           speech=args.speech, out=args.out, say=say)
    elif args.name == "arm":
        from vivace.demo import closed_loop

        facts = closed_loop.show(device=args.device, precision=args.precision, threads=args.threads, episodes=args.episodes, seed=args.seed, goal=args.goal, link=args.link, cameras=args.cameras, pace=args.pace, out=args.out, say=say)
    else:
        from vivace.demo import reach

        facts = reach.show(device=args.device, precision=args.precision, threads=args.threads, episodes=args.episodes, seed=args.seed, goal=args.goal, out=args.out, say=say)
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
        names = ("dtype", "N", "K", "T", "rows", "tokens", "multicast_x", "multicast_w", "us")
        print(json.dumps({"gemm": [dict(zip(names, r[:1] + [float(v) if "." in v else int(v) for v in r[1:]])) for r in rows], "digest": digest}))
    else:
        print(text + f"# digest {digest}")
    return 0


def cmd_tune(args) -> int:
    from vivace import files, tune

    with files.new_file(args.output) as f:  # a name that cannot be written is told before the work
        rows = tune.gemm(tune.weights(args.weight), tune.counts(args.tokens), args.dtype or ["bf16", "e4m3"], say=lambda line: print(line, file=sys.stderr))
        f.write(rows.encode())
    print(json.dumps({"output": args.output, "rows": rows.count("\n") - 1}) if args.json else f"wrote {args.output}; use it with VIVACE_TACTICS={args.output}")
    return 0


# ---- plan ----------------------------------------------------------------------------------------

def _whole_sequence(report, kv_bytes) -> dict:
    """What one sequence takes of caches of so many bytes when it has filled its context, and its recurrent state."""
    positions, held = report["context"], report["max_batch"] * report["context"]
    if report["num_kv_blocks"]:
        held, positions = report["num_kv_blocks"] * KV_BLOCK, -(-positions // KV_BLOCK) * KV_BLOCK
    return {"positions": report["context"], "kv_bytes": kv_bytes // held * positions, "state_bytes": report["state_bytes"]}


def cmd_plan(args) -> int:
    from vivace import cli_policy

    if cli_policy.is_policy(args):
        return cli_policy.plan(args)
    with load(args) as model:
        lines, report = model.memory(), model.report()
    total = sum(b for _, b in lines)
    caches = [(n, b) for n, b in lines if n.startswith(("k_cache.", "v_cache."))]
    sequence = _whole_sequence(report, sum(b for _, b in caches))
    if args.json:
        print(json.dumps({"regions": [{"name": n, "bytes": b} for n, b in lines], "total_bytes": total, "sequence": sequence, "report": report}))
        return 0
    for name, size in [(n, b) for n, b in lines if (n, b) not in caches] + [(f"kv cache ({len(caches)} regions)", sum(b for _, b in caches))]:
        print(f"{size:>15,}  {name}")
    print(f"{total:>15,}  total bytes ({report['family']}, {report['precision']}, kv {report['kv_dtype']}, context {report['context']}, batch {report['max_batch']})")
    state = f", recurrent state {sequence['state_bytes']:,}" if sequence["state_bytes"] else ""
    for form, n in report["stored"].items():
        print(f"on disk: {form}, {n['kept']:,} matrices kept, {n['dequantized']:,} dequantized to 16 bits")
    print(f"{sequence['kv_bytes'] + sequence['state_bytes']:>15,}  of them for a sequence of {sequence['positions']:,} positions: keys and values {sequence['kv_bytes']:,}{state}")
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
    from vivace import files
    from vivace.bench import bench_text_model, profile_rows, trace
    from vivace.errors import InvalidArgumentError

    if args.trace and not args.profile:
        raise InvalidArgumentError("--trace writes what --profile times; give both")
    from vivace import cli_policy

    if cli_policy.is_policy(args):
        return cli_policy.bench(args)
    args.max_batch = max(args.max_batch, args.batch)
    with files.new_file(args.trace) if args.trace else nullcontext() as trace_file:  # a name that cannot be written is told before the work
        start = time.perf_counter()
        with load(args) as model:
            load_s = time.perf_counter() - start
            rows = bench_text_model(model, steps=args.steps, prompt_tokens=args.prompt_tokens, batch=args.batch, position=args.position)
            report = model.report()
            profile = model.profile(rows=args.batch, position=min(args.position, report["context"] - 1)) if args.profile else None
        if args.trace:
            trace_file.write(json.dumps(trace(profile)).encode())
    bytes_per_s = None
    if profile and report["device"] != "cpu":
        from vivace import device

        bytes_per_s = device.info(int(report["device"].split(":")[1]))["peak_bytes_per_s"]
    groups = profile_rows(profile, bytes_per_s) if profile else []
    if args.json:
        print(json.dumps({"rows": rows, "load_s": load_s, "peak_rss_mb": peak_rss_mb(), **({"profile": {"step_us": profile["step_us"], "groups": groups}} if profile else {})}))
        return 0
    for r in rows:
        print(f"{r['case']:<70} p50 {r['p50_us']:>10.1f} us  p99 {r['p99_us']:>10.1f} us  {r['tokens_per_s']:>9.1f} tokens/s  {r['note']}")
    for g in groups:
        share = "" if g["share"] is None else f"  {100 * g['share']:>5.1f} %"
        print(f"{g['op']:<14} x {g['launches']:>3}  {g['bytes']:>12,} bytes  {g['us']:>8.2f} us  {g['total_us']:>9.1f} us in all  {g['gb_per_s']:>7.0f} GB/s{share}")
    if profile:
        print(f"sum {sum(g['total_us'] for g in groups):.1f} us, the step {profile['step_us']:.1f} us, {len(profile['order'])} launches")
    return 0


# ---- calibrate -----------------------------------------------------------------------------------

def cmd_calibrate(args) -> int:
    from vivace import calibrate, cli_policy, files
    from vivace.errors import InvalidArgumentError
    from vivace.model import find_compiler, resolve

    if cli_policy.is_policy(args):
        return cli_policy.calibrate(args)
    cli_policy.no_observations(args)
    from vivace.speech import is_speech

    if is_speech(resolve(args.model)):
        return _calibrate_speech(args)
    if args.sound:
        raise InvalidArgumentError(f"--sound: of speech models; {args.model} is a language model")
    prompts = None if args.prompts is None else [line for line in files.read_text(args.prompts).splitlines() if line.strip()]
    find_compiler(args.device)
    scales = calibrate.act_scales(resolve(args.model), prompts, percentile=args.percentile, device=args.device)
    if args.json:
        print(json.dumps({"plan": calibrate.PLAN, "percentile": args.percentile, "act_scales": scales}))
    else:
        print(f"{len(scales)} scales, {min(scales):.3g} to {max(scales):.3g}, kept for precision {calibrate.PLAN}")
    return 0


def _calibrate_speech(args) -> int:
    from vivace import calibrate
    from vivace.errors import InvalidArgumentError
    from vivace.model import find_compiler, resolve
    from vivace.speech import calibration

    if args.prompts is not None:
        raise InvalidArgumentError(f"--prompts: of language models; {args.model} hears: give --sound")
    find_compiler(args.device)
    scales = calibration.of_checkpoint(resolve(args.model), args.sound, percentile=args.percentile, device=args.device)
    if args.json:
        print(json.dumps({"plan": calibrate.PLAN, "percentile": args.percentile, "sounds": len(args.sound), "act_scales": scales}))
    else:
        print(f"{len(scales)} scales of {len(args.sound)} sounds, {min(scales):.3g} to {max(scales):.3g}, kept for precision {calibrate.PLAN} with --calibration of these sounds")
    return 0


# ---- verify --------------------------------------------------------------------------------------

def cmd_verify(args) -> int:
    from vivace import cli_policy, files
    from vivace.verify import verify

    if cli_policy.is_policy(args):
        return cli_policy.verify(args)
    cli_policy.no_observations(args)
    prompts = None if args.text is None else [files.read_text(args.text)]
    r = verify(args.model, precision=args.precision, against=args.against, prompts=prompts, device=args.device, context=args.context)
    if args.json:
        print(json.dumps(r))
        return 0
    for row in r["layers"]:
        print(f"{row['place']:>4} {row['op']:<10} error {row['error']:.2e}")
    if r["cut"]:
        print(f"{r['cut']} tokens beyond the context of {r['context']} were left out; --context takes more", file=sys.stderr)
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
