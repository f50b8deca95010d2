"""Writes tests/fixtures/spm/<name>.gguf and <name>.json.xz: SentencePiece tokenizers in GGUF's form and what they must give.

    python -m tests.reference.make_spm_tokenizers      # needs sentencepiece 0.2.3, gguf 0.19.0

Each is trained here on the licence and some made-up lines, with byte fallback: `prefix` puts a space before the
text as Llama 2 does, `plain` does not and has a user-defined piece, as Gemma does. The JSON holds strings and the
ids that the sentencepiece library gives: words, runs of spaces and letters, digits, controls, scripts of several
kinds, bytes that have no piece.
"""
import io
import json
import lzma
import random
from pathlib import Path

import sentencepiece

ROOT = Path(__file__).resolve().parents[2]
OUT = ROOT / "tests" / "fixtures" / "spm"
MODELS = {"prefix": dict(add_dummy_prefix=True, user_defined_symbols=[]),
          "plain": dict(add_dummy_prefix=False, user_defined_symbols=["<|turn|>", "\n\n"])}
ALPHABETS = ["abcdefghij ", "  \t\n", "aab ", "THEthe and of ", "0123456789.,", "äöüßéñ ç", "日本語中文한국 ", "🙂🚀👩‍👩‍👧‍👦é", "\u2581 _", "\x01\x7f\u200b\ufeff\u202e",
             "(){}[];:'\"/\\<>|=+-*&^%$#@!~` ", "नमस्ते שלום مرحبا "]
FIXED = ["", " ", "  ", "   x", "x   ", "\u2581", "a" * 300, "the " * 60, " " * 33, "\n" * 7, "</s>", "<s>hello", "<0x41>", "<unk>", "\x00", "é" * 9, "Apache License, Version 2.0"]


def lines():
    text = (ROOT / "LICENSE").read_text()
    rng = random.Random(0)
    made = [" ".join("".join(rng.choice("abcdefghijklmnopqrstuvwxyzäöüé日本語🙂0123456789") for _ in range(rng.randint(1, 9))) for _ in range(12)) for _ in range(400)]
    return [x for x in text.splitlines() if x.strip()] + made + ["a" * n for n in range(1, 40)] + [" " * n + "x" for n in range(1, 20)]


def strings():
    rng = random.Random(1)
    words = (ROOT / "LICENSE").read_text().split()
    out = list(FIXED)
    for i in range(500):
        alphabet = rng.choice(ALPHABETS) if i % 3 else "".join(ALPHABETS)
        out.append("".join(rng.choice(alphabet) for _ in range(rng.randint(1, 40))))
    return out + [" ".join(rng.choice(words) for _ in range(rng.randint(1, 30))) for _ in range(100)]


def train(options):
    """The same model at every call."""
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines()), model_writer=model, model_type="bpe", vocab_size=700, byte_fallback=True, character_coverage=0.99,
        normalization_rule_name="identity", remove_extra_whitespaces=False, allow_whitespace_only_pieces=True, split_digits=True,
        num_threads=1, minloglevel=2, **options)
    return sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())


def write(name, options):
    import gguf

    sp = train(options)
    user = set(options["user_defined_symbols"])

    def kind(i):
        T = gguf.TokenType
        return (T.UNKNOWN if sp.is_unknown(i) else T.CONTROL if sp.is_control(i) else T.BYTE if sp.is_byte(i) else
                T.USER_DEFINED if sp.id_to_piece(i) in user else T.NORMAL)

    w = gguf.GGUFWriter(OUT / f"{name}.gguf", "llama")
    w.add_tokenizer_model("llama")
    ids = range(sp.get_piece_size())
    w.add_token_list([sp.id_to_piece(i) for i in ids])
    w.add_token_scores([sp.get_score(i) for i in ids])
    w.add_token_types([kind(i) for i in ids])
    w.add_bos_token_id(sp.bos_id())
    w.add_eos_token_id(sp.eos_id())
    w.add_unk_token_id(sp.unk_id())
    w.add_add_space_prefix(options["add_dummy_prefix"])
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    cases = [[s, sp.encode(s)] for s in strings() + (["<|turn|>hello", "a<|turn|>  b<|turn|>", "x\n\ny"] if user else [])]
    text = json.dumps({"source": f"sentencepiece {sentencepiece.__version__}", "cases": cases}, ensure_ascii=True, separators=(",", ":")) + "\n"
    (OUT / f"{name}.json.xz").write_bytes(lzma.compress(text.encode(), preset=9))
    print(name, len(cases), "strings,", (OUT / f"{name}.gguf").stat().st_size, "bytes")


if __name__ == "__main__":
    OUT.mkdir(parents=True, exist_ok=True)
    for name, options in MODELS.items():
        write(name, options)
