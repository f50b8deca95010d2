"""A million made-up and adversarial strings through every kind of tokenizer: tests/results/cpu/tokenizers.json.

    python -m tests.reference.many_strings SMOLLM2.gguf      # needs sentencepiece, gguf, tokenizers

Byte-level BPE out of GGUF against smollm2_tokenizer.py, which builds its tokenizer from the gguf library's reading;
SentencePiece BPE out of GGUF against the sentencepiece library itself. Texts are given back by decoding, but for
what a tokenizer is known to fold.
"""
import argparse
import random
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.reference import make_spm_tokenizers as spm  # noqa: E402

SPECIAL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "<s>", "</s>", "<unk>", "<0x0A>", "<|turn|>", "<|im_start", "|im_end|>", "\u2581", "\u0120"]
ODD = ["\u0000", "\u0301", "\u200d", "\ufe0f", "\u202e", "\ufeff", "\uffff", "\U0010ffff", "\u00ad", "\u1e9b\u0323", "\uac00\u11a8", "\u0130", "\u01c5", "'S", "'ll", "\u2019s",
       "\r\n", "\r", "\u2028", "\x85", "\u3000", "\u00a0", "\t ", "1\u0663\u0967", "\u00bd", "\u2460", "\U0001d7ce"]
ALPHABETS = [*spm.ALPHABETS, "".join(ODD)]


def strings(count: int, seed: int):
    """Words, runs, single scripts and their mixtures, pieces of special names, any code points."""
    rng = random.Random(seed)
    words = (ROOT / "LICENSE").read_text().split() + SPECIAL + ODD

    def any_point():
        while 0xD800 <= (point := int(0x110000 ** rng.random())) <= 0xDFFF:
            pass
        return chr(point)

    def one(kind):
        n = rng.randint(1, 40)
        if kind == 0:
            return "".join(rng.choice(rng.choice(ALPHABETS)) for _ in range(n))
        if kind == 1:
            alphabet = rng.choice(ALPHABETS)
            return "".join(rng.choice(alphabet) for _ in range(n))
        if kind == 2:
            return " ".join(rng.choice(words) for _ in range(n // 3 + 1))
        if kind == 3:
            return "".join(rng.choice(words) for _ in range(n // 4 + 1))
        if kind == 4:
            return rng.choice(ALPHABETS[rng.randrange(len(ALPHABETS))]) * rng.randint(1, 80)
        if kind == 5:
            return "".join(any_point() for _ in range(n))
        piece = rng.choice(SPECIAL + ODD)
        at = rng.randint(0, len(piece))
        return piece[:at] + one(rng.randrange(5)) + piece[at:]

    for _ in range(count):
        yield one(rng.randrange(7))


MARKER = "<|turn|>"  # a user's own piece of one SentencePiece model: to that library it is one in every text, here a name


def compare(name, ours, theirs, count, seed) -> tuple[int, str]:
    wrong, first = 0, ""
    for s in strings(count, seed):
        if name == "spm_plain":
            s = s.replace(MARKER, MARKER[1:])
        a, b = ours(s), theirs(s)
        if a != b:
            wrong += 1
            first = first or f"{s!r}: {a[:12]} and not {b[:12]}"
    print(f"{name}: {wrong} of {count} strings differ {first}", flush=True)
    return wrong, first


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("gguf", help="the SmolLM2 file")
    p.add_argument("--count", type=int, default=1_000_000)
    p.add_argument("--seed", type=int, default=1)
    args = p.parse_args()

    import sentencepiece
    import tokenizers

    import vivace
    from tests.reference.smollm2_tokenizer import ChatTokenizer
    from tools.receipt import Receipt
    from vivace import _core
    from vivace.text import load_text

    reference = ChatTokenizer(args.gguf).tokenizer
    reference.encode_special_tokens = True  # special names in a text are text
    cases = [("smollm2", load_text("", _core.read_metadata(args.gguf)).encode, lambda s: reference.encode(s, add_special_tokens=False).ids, "tokenizers " + tokenizers.__version__)]
    for name, options in spm.MODELS.items():
        model = spm.train(options)
        ours = load_text("", _core.read_metadata(str(spm.OUT / f"{name}.gguf")))
        cases.append((f"spm_{name}", ours.encode, model.encode, "sentencepiece " + sentencepiece.__version__))

    r = Receipt("tokenizers", chip="cpu", command="python -m tests.reference.many_strings", versions={"vivace": vivace.__version__},
                sources=["python/vivace/text.py", "tests/reference/many_strings.py", "tests/reference/smollm2_tokenizer.py", "tests/reference/make_spm_tokenizers.py"])
    counts = [args.count - 2 * (args.count // 3), args.count // 3, args.count // 3]
    for (name, ours, theirs, peer), count in zip(cases, counts):
        wrong, first = compare(name, ours, theirs, count, args.seed)
        r.row(op="e2e", case=f"tokenizer={name},strings={count},seed={args.seed},metric=unequal", tool=peer, max_err=wrong, bound=0, note=first or None, **{"pass": wrong == 0})
    if not all(row["pass"] for row in r.data["rows"]):
        sys.exit("tokenizers differ")
    print(r.write("tests").relative_to(ROOT))


if __name__ == "__main__":
    main()
