"""The parts of a GPU machine's tests: processes that know nothing of one another and leave rows of their own, so that
they run side by side, or in shares on several machines. device_run.py runs them."""
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PYTEST = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--device", "cuda", "--rows", "ROWS"]
WORDS = ("gpu", "cuda", "driver", "nvrtc", "compiler", "cache", "pack", "kernel", "transfer", "launch", "pool", "backends", "table", "embedded")  # of C++ suites


class Part(NamedTuple):
    """One process; its rows go to <name>.jsonl, which ROWS in the command stands for."""

    name: str
    command: list
    cost: float = 15        # seconds it takes beside fifty others on 64 cores, about: the longest begin first
    env: dict = {}
    tool: str = ""          # of compute-sanitizer
    limit: float = 280


def share_of(parts, index, count):
    """The index-th of `count` shares of about the same cost, the longest part first; every part is in one."""
    shares = [(0.0, i, []) for i in range(count)]
    for p in sorted(parts, key=lambda p: (-p.cost, p.name)):
        cost, i, held = min(shares)
        shares[i] = (cost + p.cost, i, held + [p])
        shares.sort(key=lambda s: s[1])
    return shares[index][2]


def chosen(op):
    return f"[{op}- or [{op}]"


def in_shares(count, name, command, cost, **more):
    """Parts that take every count-th test each; none may be without."""
    return [Part(f"{name}-{i}" if count > 1 else name, [*command, "--share", f"{i}/{count}"], cost, **more) for i in range(count)]


# op -> (shares, cost of each) of its table-driven tests
OPS = {"attention": (3, 70), "gemm": (3, 35), "grouped_gemm": (1, 30), "sample": (1, 25), "gated_gemm": (2, 25), "norm": (1, 18), "rms_gemm": (2, 30), "gemm_rms_rows": (2, 30)}


def ops(s, found):
    """The table-driven op tests, an op a process, so that a crash takes only its op's rows."""
    parts = [p for op in found for count, cost in [OPS.get(op, (1, 9))] for p in in_shares(count, f"ops-{op}", [*PYTEST, "tests/test_ops.py", "-k", chosen(op)], cost)]
    return parts + (in_shares(5, "ops-attention-grid", [*PYTEST, "tests/test_attention_grid.py"], 50) if "attention" in found else [])


# op -> tests -> (shares, cost of each); any other op's are one process
GPU = {
    "gemm": {"waits": (2, 40), "each_tactic": (1, 150), "independent": (3, 75), "mix or strides": (1, 18)},
    "grouped_gemm": {"waits": (1, 35), "tactic": (1, 25), "mix or strides": (1, 12)},
    "attention": {"waits": (2, 25), "each_tactic": (1, 95), "independent": (2, 45), "mix or strides": (1, 15)},
    "norm": {"waits or independent or mix or strides": (2, 25), "every_tactic": (1, 55), "each_tactic": (1, 75)},
    "embedding": {"waits or independent or mix or strides": (1, 20), "tactic": (1, 90)},
    "qkv_rope": {"waits or independent or mix or strides": (1, 22), "tactic": (1, 75)},
    "sample": {"waits or independent or mix or strides": (1, 28), "tactic": (1, 40)},
    "cast": {"waits or independent or mix or strides": (1, 20), "tactic": (1, 30)},
    "rms_gemm": {"": (3, 45)},
    "gemm_rms_rows": {"": (4, 40)},
}
GPU_FILES = {"test_chains": (3, 35), "test_rope_attention": (2, 45), "test_racecheck": (1, 45), "test_attention_variant": (3, 65), "test_memcheck": (1, 75), "test_driver_only": (1, 45), "test_portable": (4, 50), "test_gemm_epilogues": (4, 60), "test_arrays": (6, 40)}
EACH = {"gemm": 3, "norm": 2, "attention": 2}  # shares of test_tactics.py's tests: see SHARES there


def gpu(s, found):
    parts = []
    for op in found:
        for i, (tests, (count, cost)) in enumerate(GPU.get(op, {"": (1, 18)}).items()):
            count = EACH.get(op, 1) if tests == "each_tactic" else count
            words = f"({chosen(op)}) and ({tests})" if tests else chosen(op)
            parts += in_shares(count, f"gpu-{op}-{tests.split()[0]}" if tests else f"gpu-{op}", [*PYTEST, "-s", "tests/gpu/test_gpu.py", "tests/gpu/test_tactics.py", "-k", words], cost)
    parts += [Part("gpu-large", [*PYTEST, "tests/gpu/test_gpu.py", "-k", "large"], 40)]
    for f in sorted((ROOT / "tests/gpu").glob("test_*.py")):
        if f.stem not in ("test_gpu", "test_tactics"):
            count, cost = GPU_FILES.get(f.stem, (1, 15))
            parts += in_shares(count, f"gpu-{f.stem}", [*PYTEST, f"tests/gpu/{f.name}"], cost)
    return parts


def replays(s, found):
    """As many as there is time for; beside other work on a GPU they take its time slices."""
    return [Part("replays", [*PYTEST, "-s", "tests/gpu/test_gpu.py", "-k", "replays"], 400, {"VIVACE_REPLAYS": "1000000", "VIVACE_REPLAY_SECONDS": os.environ.get("VIVACE_REPLAY_SECONDS", "240")}, limit=400)]


def bad(s, found):
    return in_shares(2, "bad", [*PYTEST, "tests/test_ops_bad.py", "-k", "wrong or missing or unknown or attributes"], 45)


# file -> words of its tests -> (shares, cost of each)
MODELS = {"model_steps": {"bits or strict": (3, 40), "narrow": (3, 40), "many": (1, 60), "not (bits or strict or narrow or many)": (2, 40)},
          "policy": {"": (6, 40)}, "demo": {"": (2, 30)}, "fp4": {"": (2, 35)}, "drafts": {"": (1, 30)}, "int4": {"": (1, 30)}, "calibrate": {"": (1, 25)}}


def models(s, found):
    """Policies and language models: text, bits, joining and leaving, exhausted pages, NaN, every plan."""
    from tests.conftest import MODELS as files

    return [p for f in files for words, (count, cost) in MODELS.get(f, {"": (1, 20)}).items()
            for p in in_shares(count, f"models-{f}" + (f"-{words.split()[0].strip('(')}" if words else ""), [*PYTEST, f"tests/test_{f}.py", *(["-k", words] if words else [])], cost)]


def gtest(s, found):
    if not (s.carry / "vivace_tests").exists():  # a failed part, and the others run
        return [Part("gtest", [sys.executable, "-c", "raise SystemExit('what was carried has no vivace_tests: tools/build_device_wheel.sh makes it')", "ROWS"])]
    names = subprocess.run([s.carry / "vivace_tests", "--gtest_list_tests"], capture_output=True, text=True, env=s.env).stdout
    suites = [line.split()[0].rstrip(".") for line in names.splitlines() if line and not line.startswith(" ")]
    gpu_suites = [n for n in suites if any(w in n.lower() for w in WORDS)]
    return [Part("gtest", [s.carry / "vivace_tests", "--gtest_brief=1", "--gtest_output=json:ROWS", "--gtest_filter=" + ":".join(f"{n}.*" for n in gpu_suites)], 20)]


FAULT_SHARES = 32


def faults(s, found):
    return [Part(f"faults-{i}", [sys.executable, "tests/planted_gpu.py", "--jobs", 1, "--share", f"{i}/{FAULT_SHARES}", "--rows", "ROWS"], 75) for i in range(FAULT_SHARES)]


# tool -> [(ops, shares of their cases, cost of each)]; the ops that no line names are one more line's
LONG = {
    "racecheck": [(("gemm",), 4, 75), (("attention",), 2, 105), (("gated_gemm",), 3, 30), (("grouped_gemm",), 2, 30), (("norm_gemm",), 6, 90), (("rms_gemm", "rms_gemm_rope", "gemm_rms_rows", "rms_rows"), 10, 90),
                  (("scaled_attention", "latent_attention", "attention_block_scaled"), 4, 80), (("im2col", "qkv_rope", "kv_append"), 3, 80), (("sample",), 8, 60), (("norm",), 2, 40), (None, 6, 60)],
    "memcheck": [(("gemm",), 2, 80), (("attention",), 2, 50), (("gated_gemm", "grouped_gemm"), 2, 50), (None, 3, 55)],
    "initcheck": [(("gemm", "gated_gemm", "grouped_gemm"), 3, 75), (("attention",), 1, 87), (None, 2, 75)],
    "synccheck": [(("gemm", "gated_gemm", "grouped_gemm"), 2, 48), (("attention",), 1, 30), (None, 2, 57)],
}


def sanitize(s, found):
    tool, parts = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer", []
    for name, lines in LONG.items():
        named = {op for ops_, *_ in lines for op in ops_ or ()}
        for ops_, count, cost in lines:
            taken = [op for op in found if op not in named] if ops_ is None else [op for op in ops_ if op in found]
            label = "rest" if ops_ is None else ops_[0]
            # memcheck: the driver is asked for parameters until it says no
            words = [tool, "--tool", name, "--error-exitcode", 9, *(["--report-api-errors", "no"] if name == "memcheck" else []), "--print-limit", 20, sys.executable, "tests/gpu/sanitized.py"]
            parts += [Part(f"sanitize-{name}-{label}-{i}", [*words, "ROWS", name, "--share", f"{i}/{count}", *taken], cost, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, name) for i in range(count)]
        # Of every op some calls that nobody wrote down.
        words = [tool, "--tool", name, "--error-exitcode", 9, *(["--report-api-errors", "no"] if name == "memcheck" else []), "--print-limit", 20, sys.executable, "tests/gpu/sanitized.py"]
        parts += [Part(f"sanitize-{name}-drawn-{i}", [*words, "ROWS", name, "--share", f"{i}/3", "--drawn", 4], 60, {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}, name) for i in range(3)]
    return parts


def fuzz(s, found):
    """Calls drawn from the op table, hostile contents, chains: a part that takes every core, for a run of its own. With
    VIVACE_FUZZ_GPUS=2 on two GPUs, as one receipt; VIVACE_FUZZ_MODES names modes that run alone."""
    seconds, seed, gpus = float(os.environ.get("VIVACE_FUZZ_SECONDS", "300")), os.environ.get("VIVACE_FUZZ_SEED", "1"), os.environ.get("VIVACE_FUZZ_GPUS", "1")
    command = [sys.executable, "-m", "tests.differential", "--device", "cuda", "--gpus", gpus, "--compile", "--seed", seed, "--seconds", seconds, "--jobs", s.jobs, "--mode", *os.environ.get("VIVACE_FUZZ_MODES", "values hostile chains").split(), "--rows", "ROWS"]
    return [Part("fuzz", command, seconds + 10, limit=seconds + 35)]


def flashinfer(s, found):
    """FlashInfer's own tests, which are carried in a folder beside the sources: docs/flashinfer.md."""
    tests = s.carry / "flashinfer-tests"
    if not (tests / "tests").is_dir():
        return [Part("flashinfer", [sys.executable, "-c", "raise SystemExit('what was carried has no flashinfer-tests/tests: docs/flashinfer.md says how to fetch it')", "ROWS"])]
    seconds = int(os.environ.get("VIVACE_JUDGE_SECONDS", "60"))
    return [Part("flashinfer", [sys.executable, "tools/flashinfer_judge.py", "--tests", tests, "--seconds", seconds, "--jobs", max(1, s.jobs - 2), "--work", s.logs / "flashinfer", "--out", "ROWS"], 400, limit=560)]


def stress(s, found):
    """One model under many callers; 120 s each."""
    words = [sys.executable, "-m", "tests.stress", "--device", "cuda", "--model", "tests/fixtures/tiny/llama_untied", "--precision", "bf16", "--seconds", 120, "--rows", "ROWS"]
    return [Part(f"stress-{scope}", [*words, "--scope", scope, "--pages", pages], 140) for scope, pages in (("threads", 0), ("asyncio", 12), ("mixed", 12))]


def soak(s, found):
    """Five minutes of mixed load; slopes of memory, descriptors and threads."""
    return [Part("soak", [sys.executable, "tools/soak.py", "--device", "cuda", "--tiny", "--seconds", 300, "--rows", "ROWS"], 320, limit=420)]


RANDOM_MODELS = {"text": 5, "crowd": 3, "hybrid": 2, "qwen3_vl": 2, "policy": 3, "groot": 2, "smolvla": 1, "whisper": 1}  # kind -> processes


def fuzz_models(s, found):
    """Whole models by random configurations, each process with seeds of its own."""
    seconds, seed = float(os.environ.get("VIVACE_FUZZ_MODEL_SECONDS", "90")), int(os.environ.get("VIVACE_FUZZ_SEED", "1"))
    return [Part(f"fuzz_models-{kind}-{i}", [sys.executable, "-m", "tests.random_models", "--device", "cuda", "--kind", kind, "--seed", 1_000_000 * seed + 10_000 * i, "--seconds", seconds, "--rows", "ROWS"],
                 seconds + 20, limit=seconds + 150) for kind, count in RANDOM_MODELS.items() for i in range(count)]


STAGES = {f.__name__: f for f in (gtest, ops, gpu, replays, models, bad, faults, sanitize, fuzz, flashinfer, stress, soak, fuzz_models)}
