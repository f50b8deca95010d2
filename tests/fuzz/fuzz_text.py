"""Fuzzes what Python reads beside weights: tokenizer.json, its companions, chat templates; and compares the readers of
safetensors and GGUF with the reference ones. No coverage guides it: mutations know the formats instead.

    python tests/fuzz/fuzz_text.py SECONDS [TARGET ...]      # tokenizer, template, safetensors, gguf

Prints a line a target as fuzz_receipt.py reads it. What breaks a promise is written to build/fuzz/ and ends the run.
"""
import json
import os
import random
import struct
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))
import vivace  # noqa: E402
from vivace import _core, template, text  # noqa: E402

FIXTURES = ROOT / "tests/fixtures"
VALUES = [None, True, -1, 0, 1, 2**31, 2**64, 1e308, "", "x", "\u2581", "\ud83d", [], [[]], {}, {"a": 1}, ["a", "b"], "BPE", "Sequence", "ByteLevel"]
WORDS = ["{{", "}}", "{%", "%}", "for", "in", "range(9)", "messages", "if", "endif", "endfor", "loop", ".", "[0]", "|", "join", "trim", "+", "~", "*", "(", ")", "'x'", "set",
         "ns", "=", "namespace()", "macro", "call", "raise_exception('no')", "content", "99999999", "-1", "none", "tojson", "sort", "\n", "{#", "#}", "%", "**", "lipsum()", "cycler", "self"]


def mutate_json(value, rng):
    if isinstance(value, dict) and value and rng.random() < 0.93:
        key, out = rng.choice(list(value)), dict(value)
        if isinstance(value[key], (dict, list)) and rng.random() < 0.8:
            out[key] = mutate_json(value[key], rng)
        elif rng.random() < 0.2:
            del out[key]
        else:
            out[key] = rng.choice(VALUES)
        return out
    if isinstance(value, list) and value and rng.random() < 0.9:
        i = rng.randrange(len(value))
        return [*value[:i], mutate_json(value[i], rng), *value[i + rng.randint(0, 1):]]
    return rng.choice(VALUES)


def mutate_bytes(data: bytes, rng, head: int) -> bytes:
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 4))):
        if not out:
            break
        at = rng.randrange(min(head, len(out)))
        kind = rng.randrange(5)
        if kind == 0:
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            out[at:at + 8] = struct.pack("<Q", rng.choice((0, 1, 2**31, 2**32, 2**63, 2**64 - 1, len(data), rng.getrandbits(64))))
        elif kind == 2:
            del out[at:at + rng.randint(1, 16)]
        elif kind == 3:
            out[at:at] = out[at:at + rng.randint(1, 32)]
        else:
            del out[rng.randrange(len(out)):]
    return bytes(out)


class Tokenizer:
    """Files of a hub folder: a typed error, or a tokenizer that encodes."""

    limit_s = 10

    def __init__(self, folder: Path):
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, normalizers, pre_tokenizers

        self.folder = folder
        tok = Library(models.BPE(vocab={c: i for i, c in enumerate("abcdefg</s>")} | {"ab": 20, "abc": 21}, merges=[("a", "b"), ("ab", "c")], byte_fallback=True))
        tok.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(" ", "_")])
        tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(), pre_tokenizers.ByteLevel()])
        tok.decoder = decoders.ByteLevel()
        tok.add_special_tokens(["</s>"])
        self.seeds = {"tokenizer.json": json.loads(tok.to_str()), "generation_config.json": {"eos_token_id": [3, 4]},
                      "tokenizer_config.json": {"bos_token": {"content": "a"}, "eos_token": "</s>", "chat_template": [{"name": "default", "template": "{{ bos_token }}"}]}}

    def once(self, rng) -> bytes:
        which, wrote = rng.choice(list(self.seeds)), b""
        for name, value in self.seeds.items():
            body = json.dumps(mutate_json(value, rng) if name == which else value).encode()
            if name == which and rng.random() < 0.2:
                body = mutate_bytes(body, rng, len(body))
            (self.folder / name).write_bytes(body)
            wrote = body if name == which else wrote
        try:
            t = text.load_text(str(self.folder), {})
            t.decode(t.encode("abc a\u0301b 12</s>", special=rng.random() < 0.5))
            step = t.stream()
            for token in (0, 1, 5, 20, 3):
                step(token)
        except vivace.Error:
            pass
        return wrote


class Template:
    """A typed error or a text, in bounded time, and the process answers the next one."""

    limit_s = 10

    def __init__(self, _):
        self.seeds = ["{% for m in messages %}{{ m['role'] + ': ' + m['content'] | trim }}\n{% endfor %}{% if add_generation_prompt %}A:{% endif %}",
                      "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + m.content|length %}{% endfor %}{{ ns.n * 'x' }}",
                      "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{% endif %}.{% endmacro %}{{ f(9) }}{{ messages | tojson }}"]

    def once(self, rng) -> bytes:
        source = rng.choice(self.seeds)
        for _ in range(rng.choice((1, 2, 4, 8))):
            at = rng.randrange(len(source) + 1)
            source = source[:at] + rng.choice(("", " ", rng.choice(WORDS), rng.choice(WORDS) * rng.randint(1, 50))) + source[at + rng.choice((0, 0, 1, 5)):]
        try:
            assert isinstance(template.render(source, messages=[{"role": "user", "content": " hi "}], add_generation_prompt=True), str)
        except vivace.Error:
            pass
        return source.encode()


class Readers:
    """Ours against the reference reader: what we accept it accepts, with the same tensors."""

    limit_s = 10

    def __init__(self, folder: Path, kind: str):
        self.kind, self.file, self.both = kind, folder / f"m.{kind}", 0
        names = ["tiny/llama_linear/model.safetensors"] if kind == "safetensors" else ["tiny_gguf/llama_q4_1.gguf", "tiny_gguf/qwen3_q8_0.gguf"]
        self.seeds = [(FIXTURES / n).read_bytes() for n in names]

    def reference(self) -> dict:
        if self.kind == "safetensors":
            from safetensors import safe_open

            with safe_open(self.file, "numpy") as f:
                return {n: tuple(f.get_slice(n).get_shape()) for n in f.keys()}
        from gguf import GGUFReader

        return {t.name: (tuple(int(d) for d in reversed(t.shape)), int(t.data_offset), int(t.n_bytes)) for t in GGUFReader(str(self.file)).tensors}

    def once(self, rng) -> bytes:
        seed = rng.choice(self.seeds)
        raw = mutate_bytes(seed, rng, 8 + struct.unpack("<Q", seed[:8])[0] if self.kind == "safetensors" else seed.index(b"blk.1") + 500)
        self.file.write_bytes(raw)
        try:
            entries = _core.read_tensors(str(self.file))
        except vivace.Error as e:
            assert len(str(e)) > 10
            return raw
        ours = {n: tuple(shape) if self.kind == "safetensors" else (tuple(shape), offset, size) for n, _, shape, _, offset, size in entries}
        theirs = self.reference()
        assert ours == theirs, {k: (ours.get(k), theirs.get(k)) for k in ours.keys() | theirs.keys() if ours.get(k) != theirs.get(k)}
        self.both += 1
        return raw


TARGETS = {"tokenizer": Tokenizer, "template": Template, "safetensors": lambda f: Readers(f, "safetensors"), "gguf": lambda f: Readers(f, "gguf")}


def run(name: str, seconds: float, seed: int) -> int:
    rng, count, start, cpu = random.Random(seed), 0, time.monotonic(), os.times()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if os.path.isdir("/dev/shm") else None) as folder:
        target = TARGETS[name](Path(folder))
        while time.monotonic() - start < seconds:
            state, began = rng.getstate(), time.process_time()
            try:
                target.once(rng)
                assert time.process_time() - began < target.limit_s, "too slow"
            except BaseException as e:
                if isinstance(e, KeyboardInterrupt):
                    raise
                rng.setstate(state)
                found = ROOT / "build/fuzz" / f"text-{name}-{seed}-{count}.txt"
                found.parent.mkdir(parents=True, exist_ok=True)
                found.write_text(f"{type(e).__name__}: {e}\nseed {seed}, input {count}\n")
                print(f"text_{name} 1 0 0 {count}  {type(e).__name__}: {str(e)[:300]}  ({found})", flush=True)
                return 1
            count += 1
    now = os.times()
    print(f"text_{name} 0 {now.user - cpu.user:.1f} {now.system - cpu.system:.1f} {count}", flush=True)
    return 0


if __name__ == "__main__":
    seconds, names = float(sys.argv[1]), sys.argv[2:] or list(TARGETS)
    raise SystemExit(max(run(name, seconds / len(names), int(time.time())) for name in names))
