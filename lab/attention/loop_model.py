#!/usr/bin/env python3
"""What the loop over keys of a prefill kernel costs, from its machine code: a model of one quarter of an SM, whose warps walk the loop by the
control words of its instructions (stalls, scoreboards). Needs nvdisasm on the PATH, no GPU.

    python lab/attention/loop_model.py [--folder FOLDER] ROWS:HEAD:KEYS:STAGES[:full] ...      # 128:64:128:3 256:64:128:3:full

`full`: of a full mask; tiles of 256 rows are attention_prefill_tall's.

Prints instructions and cycles of a block of keys. What it takes for given: eight cycles a MUFU, two an instruction of the ALU pipe, one of
the FMA pipe; N/2 cycles a product of N columns; a product is issued when the one before it of its warp has begun. The first of the two
figures counts 22 cycles from a MUFU to its result, the second 40, as beside other warps. It does not know memory, clocks and what
stands outside the loop.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
ALU = ("FMNMX", "F2FP", "FSEL", "FSETP", "ISETP", "LOP3", "SEL", "VIADD", "IADD3", "LEA", "SHF", "PLOP3", "VIMNMX")
FMA = ("FFMA", "FADD", "FMUL", "IMAD")
BRANCH = re.compile(r"BRA(?:\.\w+)*\s+(?:!?U?P\d+, )?`\((\.L_x_\d+)\)")
MUFU, SHUFFLE, BARRIER, PRODUCT, FIXED = 8, 24, 20, 24, 4  # cycles: between two MUFUs; from issue to result, of a product behind its last step


class Instruction(NamedTuple):
    at: int
    text: str
    stall: int
    writes: int  # scoreboard, or 7
    reads: int
    waits: int   # mask of scoreboards

    @property
    def op(self):
        return re.sub(r"^@!?U?P\w+\s+", "", self.text).split()[0]

    @property
    def name(self):
        return self.op.split(".")[0]


def disassembled(cubin: str):
    """Instructions in order, and the addresses of labels."""
    lines = subprocess.run(["nvdisasm", "-c", "-hex", cubin], capture_output=True, text=True, check=True).stdout.splitlines()
    code, labels, waiting = [], {}, []
    for i, line in enumerate(lines):
        if m := re.match(r"\s*(\.L_x_\d+):", line):
            waiting.append(m[1])
        if m := re.match(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?);\s*/\* 0x[0-9a-f]{16} \*/", line):
            control = int(re.search(r"/\* 0x([0-9a-f]{16}) \*/", lines[i + 1])[1], 16) >> 41
            code.append(Instruction(int(m[1], 16), m[2].strip(), control & 15, control >> 5 & 7, control >> 8 & 7, control >> 11 & 63))
            labels |= dict.fromkeys(waiting, code[-1].at)
            waiting = []
    return code, labels


def loop_of(code, labels):
    """The smallest loop with both products, without masks, patches and requests."""
    index = {x.at: i for i, x in enumerate(code)}
    target = [labels.get(m[1]) if (m := BRANCH.search(x.text)) else None for x in code]
    values = [i for i, x in enumerate(code) if x.name == "HGMMA" and "tnspB" in x.text]
    scores = [i for i, x in enumerate(code) if x.name == "HGMMA" and "tnspB" not in x.text]
    spans = [(index[t], i) for i, t in enumerate(target) if t is not None and t < code[i].at]
    begin, end = min((s for s in spans if any(s[0] <= i <= s[1] for i in values) and any(s[0] <= i <= s[1] for i in scores)), key=lambda s: s[1] - s[0])
    out, i = [], begin
    while i <= end:
        out.append(code[i])
        past = index[target[i]] if i < end and target[i] is not None and code[i].at < target[i] <= code[end].at else None
        i += 1
        if past is not None:
            left = Counter(x.name for x in code[i:past])
            if left["FSEL"] > 20 or left["STS"] or left["NANOSLEEP"] or left["UTMALDG"] or left["LDGSTS"]:
                i = past
    return out


def cycles(loop, warps, latency, offset, turns=14):
    """Of a turn, all warps together."""
    pc, ready, done = [0] * warps, [offset * w for w in range(warps)], [[] for _ in range(warps)]
    boards, begun, groups = [[0] * 6 for _ in range(warps)], [0] * warps, [[] for _ in range(warps)]
    free, tensor, now, last = Counter(), 0, 0, 0

    def pipe(x):
        return "mufu" if x.name == "MUFU" else "alu" if x.name in ALU else "fma" if x.name in FMA else "lsu" if x.name == "SHFL" else None

    while any(len(d) < turns for d in done):
        pick, later = None, []
        for w in ((last + k) % warps for k in range(warps)):
            if len(done[w]) == turns:
                continue
            x = loop[pc[w]]
            at = max([ready[w], free[pipe(x)], *(boards[w][b] for b in range(6) if x.waits >> b & 1)])
            if x.name == "HGMMA":
                at = max(at, begun[w])
            if x.op.startswith("WARPGROUP.DEPBAR") and len(groups[w]) > (left := int(x.text.rsplit("0x", 1)[1], 16)):
                at = max(at, groups[w][-1 - left] + BARRIER)
            if at <= now:
                pick = w
                break
            later.append(at)
        if pick is None:
            now = min(later)
            continue
        w, x, result = pick, loop[pc[pick]], now + FIXED
        if x.name == "MUFU":
            free["mufu"], result = now + MUFU, now + latency
        elif x.name == "HGMMA":
            begun[w] = max(now, tensor)
            tensor = begun[w] + int(re.match(r"HGMMA\.64x(\d+)x", x.op)[1]) // 2
            if "gsb0" in x.text:
                groups[w] = [*groups[w][-3:], tensor + PRODUCT]
        elif x.name == "SHFL":
            free["lsu"], result = now + 2, now + SHUFFLE
        elif x.name == "SYNCS":
            result = now + BARRIER
        elif pipe(x):
            free[pipe(x)] = now + (2 if pipe(x) == "alu" else 1)
        if x.writes < 6:
            boards[w][x.writes] = max(boards[w][x.writes], result)
        if x.reads < 6:
            boards[w][x.reads] = max(boards[w][x.reads], now + 8)
        ready[w], pc[w], last = now + max(1, x.stall), (pc[w] + 1) % len(loop), w
        if pc[w] == 0:
            done[w].append(now)
        now += 1
    return sum((d[-1] - d[4]) / (turns - 5) for d in done) / warps


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("cuts", nargs="+")
    p.add_argument("--folder", type=Path, help="for VIVACE_KERNEL_DIR")
    args = p.parse_args()
    if args.folder:
        os.environ["VIVACE_KERNEL_DIR"] = str(args.folder)
    from vivace import _core, jit

    jit.find_nvrtc()
    header = next(h for h, e in _core.gpu_instances("attention", 90) if "attention_prefill_tma" in e)
    for cut in args.cuts:
        (rows, head, keys, stages), full = map(int, cut.split(":")[:4]), ", true" if cut.endswith(":full") else ""
        name, more = ("attention_prefill_tall", "") if rows == 256 else ("attention_prefill_tma", ", vivace::kernels::Standard")
        kernel = f"{name}<vivace::kernels::bf16, vivace::kernels::AttentionTile{{{head}, {head}, {rows // 16}, 1, {keys}, {stages}, 1, true, true, true{full}}}{more}>"
        with tempfile.NamedTemporaryFile(suffix=".cubin") as f:
            f.write(_core.compile_kernels([(header, f"vivace::kernels::{kernel}")], "sm_90a")[0])
            f.flush()
            loop = loop_of(*disassembled(f.name))
        ops = Counter(x.name for x in loop)
        seen = [sum(cycles(loop, rows // 64, latency, offset) for offset in (150, 300, 700)) / 3 for latency in (22, 40)]
        print(f"{cut}: {len(loop)} instructions, {len(loop) / ops['MUFU']:.1f} a score; {seen[0]:.0f} to {seen[1]:.0f} cycles; {dict(ops.most_common(7))}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
