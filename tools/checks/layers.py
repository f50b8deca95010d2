"""Includes go one way, and each layer keeps out what it must not know."""

import re
from pathlib import Path

from . import source

PURPOSE = "includes go one way; models/, exec/ and kernels/ know only what they may"

# Siblings in one row never include one another.
ORDER = (
    ("base",),
    ("kernels", "cpu", "jit", "device"),
    ("exec", "array"),
    ("ops",),
    ("engine",),
    ("models",),
    ("sched",),
    ("serve",),
    ("capi",),
    ("python",),
)
RANK = {layer: i for i, row in enumerate(ORDER) for layer in row}

# The decided exception to the sibling rule: the CPU backend of an op reads the op's own POD
# header (Args, Policy; the functions of arrays). Both backends take the same struct, so a second copy in cpu/ could drift
# from the first; the header has no code and no CUDA in it. Device code (.cuh) stays out.
POD_HEADER = re.compile(r"vivace/kernels/\w+/\w+\.(h|def)$")

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"]+)[>"]', re.M)
# Kernels compile under NVRTC, which has no std headers; these ship with the CUDA runtime.
DEVICE_HEADERS = {"cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "cuda_fp6.h", "cuda_fp4.h", "mma.h"}
OUTSIDE = ("tests/", "bench/", "examples/", "lab/", "docs/", "tools/")

CHIP = re.compile(
    r"\b(?:cu(?:da|blas|dnn|fft)\w*|cu[A-Z]\w+|nvrtc\w*|CU(?:DA)?_\w+|sm_?\d{2,3}[af]?"
    r"|[ABHL]\d0{1,2}|GB?\d{3}|hopper|blackwell|ampere|orin|thor|avx\w*|neon)\b",
    re.I,
)
POLICY = {
    "session", "sessions", "kv", "cache", "caches", "cached", "scheduler", "schedulers",
    "batch", "batches", "batching", "protocol", "agent", "agents", "robot", "robots",
}
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def layer_of(name: str) -> str | None:
    parts = name.split("/")
    if parts[0] == "python":
        return "python"
    return parts[1] if parts[0] == "vivace" and len(parts) > 2 else None


def _line(body: str, at: int) -> int:
    return body.count("\n", 0, at) + 1


def _include_error(name: str, layer: str, quote: str, target: str) -> str | None:
    if target.startswith(OUTSIDE):
        return f"includes {target}: the product never includes {target.split('/')[0]}/"
    if not target.startswith("vivace/"):
        # The Python module's few sources lie in one folder, outside the include root.
        if quote == '"' and layer != "python":
            return f'includes "{target}": write the path from the repository root'
        if layer == "kernels" and target not in DEVICE_HEADERS:
            return f"includes <{target}>: kernels/ takes no std or host header"
        return None
    other = layer_of(target)
    if other is None:
        # vivace/<header>.h: the umbrella header, for users of the library only.
        return f"includes {target}: name the layer's own header"
    if other not in RANK:
        return f"includes {target}: {other}/ is not a layer of the house"
    if other == layer:
        return None
    if layer == "exec" and other == "kernels":
        return f"includes {target}: exec/ knows no kernel"
    if layer == "cpu" and other == "kernels" and POD_HEADER.match(target):
        return None
    if RANK[other] == RANK[layer]:
        return f"includes {target}: {layer}/ and {other}/ are siblings"
    if RANK[other] > RANK[layer]:
        return f"includes {target}: {layer}/ is below {other}/"
    return None


def run(root: Path) -> list[str]:
    out = []
    for name in source.files(root, ends=source.CPP):
        layer = layer_of(name)
        if layer is None:
            continue
        if layer not in RANK:
            out.append(f"{name}: {layer}/ is not a layer of the house")
            continue
        body = source.text(root, name)
        code = source.cpp_code(body)
        for m in INCLUDE.finditer(code):
            if why := _include_error(name, layer, m.group(1), m.group(2)):
                out.append(f"{name}:{_line(code, m.start())}: {why}")
        if layer == "models":
            for m in CHIP.finditer(code):
                out.append(f"{name}:{_line(code, m.start())}: models/ names '{m.group(0)}'")
        if layer == "exec":
            bare = source.cpp_code(body, strings=False)
            for m in re.finditer(r"[A-Za-z_]\w*", bare):
                words = {w.lower() for w in WORD.findall(m.group(0))}
                if hit := words & POLICY:
                    out.append(
                        f"{name}:{_line(bare, m.start())}: exec/ holds no policy, "
                        f"but names '{m.group(0)}' ({', '.join(sorted(hit))})"
                    )
    return out
