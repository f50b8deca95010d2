"""Machine code of the op kernels: what a rename must leave alone, and what a receipt's row was measured with.

A fingerprint is a hash of a kernel's instructions and of what it asks of the chip (registers, shared memory, constants it
brings along). Names of files, types, symbols and parameters are not in it, so that comments and renames change nothing.
Kernels are compiled here, without a GPU, by the NVRTC of the environment, through the library's disk cache.
"""
import hashlib
import json
import os
import struct
import subprocess
import sys
import tempfile
from typing import NamedTuple

ARCH = "sm_90a"   # of the chip that receipts are from
DIGITS = 12       # hex digits of a fingerprint

_COMPILE = """
import json, sys
from vivace import _core, jit
jit.find_nvrtc()
arch, extra, *ops = json.load(sys.stdin)
capability = int("".join(c for c in arch if c.isdigit()))
table = {r["name"]: _core.gpu_instances(r["name"], capability) for r in _core.op_table() if not ops or r["name"] in ops}
wanted = list(dict.fromkeys((op, h, e) for op, rows in table.items() for h, e in [*rows, *((rows[0][0], e) for e in extra.get(op, []))] if rows))
cubins = _core.compile_kernels([(h, e) for _, h, e in wanted], arch)
print(json.dumps({"compiler": _core.nvrtc_info()["version"], "kernels": [[*w, c.hex()] for w, c in zip(wanted, cubins)]}))
"""


class Kernel(NamedTuple):
    op: str
    header: str
    expression: str  # the C++ expression of the instance
    cubin: bytes


class Compiled(NamedTuple):
    compiler: str    # NVRTC's version
    kernels: list


def sections(cubin: bytes):
    """(name, type, info, size, bytes) of each section of a 64-bit ELF file."""
    if cubin[:5] != b"\x7fELF\x02":
        raise ValueError("not a 64-bit ELF file")
    start, = struct.unpack_from("<Q", cubin, 0x28)
    size, count, names = struct.unpack_from("<HHH", cubin, 0x3A)
    heads = [struct.unpack_from("<IIQQQQIIQQ", cubin, start + i * size) for i in range(count)]
    base = heads[names][4]
    for name, kind, _, _, offset, length, _, info, _, _ in heads:
        end = cubin.index(b"\0", base + name)
        yield cubin[base + name:end].decode(), kind, info, length, b"" if kind == 8 else cubin[offset:offset + length]


def fingerprint(cubin: bytes) -> str:
    """Of the one kernel of a cubin."""
    parts, code = [], 0
    for name, _, info, size, body in sections(cubin):
        stem = next((s for s in (".text.", ".nv.shared.", ".nv.constant", ".nv.global", ".rela.text.") if name.startswith(s)), None)
        if stem == ".text.":
            code += 1
            parts.append(("text", info >> 24, hashlib.sha256(body).hexdigest()))  # the upper byte of sh_info: registers
        elif stem == ".nv.constant":
            bank = name.removeprefix(".nv.constant").split(".")[0]
            parts.append(("constant", bank, size if bank == "0" else hashlib.sha256(body).hexdigest()))  # bank 0: the parameters' room
        elif stem == ".rela.text.":
            entries = [struct.unpack_from("<QQq", body, i) for i in range(0, len(body), 24)]
            parts.append(("relocation", [(at, kind & 0xFFFFFFFF, addend) for at, kind, addend in entries]))  # not the symbol's number
        elif stem:
            parts.append((stem.strip("."), size, hashlib.sha256(body).hexdigest()))
    if code != 1:
        raise ValueError(f"wanted a cubin of one kernel, got {code}")
    return hashlib.sha256(json.dumps(sorted(parts, key=repr)).encode()).hexdigest()[:DIGITS]


def stack_bytes(cubin: bytes) -> int:
    """Of a thread's stack frame; a kernel without spills and without arrays that are indexed at run time has none."""
    most, at = 0, 0
    body = next((b for name, _, _, _, b in sections(cubin) if name == ".nv.info"), b"")
    while at + 4 <= len(body):
        form, attribute, size = struct.unpack_from("<BBH", body, at)
        at += 4
        if form == 4:  # the attribute's bytes follow; else its value stands where the size would
            if attribute == 0x12:  # the least stack of a kernel: its symbol's number, bytes
                most = max(most, struct.unpack_from("<I", body, at + 4)[0])
            at += size
    return most


def compile_ops(ops=(), arch: str = ARCH, extra: dict | None = None, path: str | None = None) -> Compiled:
    """Every instance of `ops` (all by default), and of some ops the `extra` kernel expressions, compiled by the vivace that
    Python imports; `path`: a folder that it looks in first."""
    env = os.environ | ({"PYTHONPATH": path} if path else {})
    with tempfile.TemporaryDirectory() as folder:  # not the repository, whose folders Python would import
        done = subprocess.run([sys.executable, "-c", _COMPILE], input=json.dumps([arch, extra or {}, *ops]), env=env, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"kernels for {arch} do not compile:\n{done.stderr[-3000:]}")
    answer = json.loads(done.stdout.splitlines()[-1])
    return Compiled(answer["compiler"], [Kernel(op, header, expression, bytes.fromhex(cubin)) for op, header, expression, cubin in answer["kernels"]])
