"""Bytes of each token: replies are put together from them, since a token may end in the middle of a character."""
from __future__ import annotations

import random
import re

from vivace.errors import UnsupportedError

TRIED, TRIED_TOKENS = 48, 24  # random answers that must say the same as the tokenizer's own decoder, and their tokens


def _alphabet() -> dict[str, int]:
    """Byte-level tokenizers write a byte as a printable character: itself where it is one, else from U+0100 on."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    rest = [b for b in range(256) if b not in plain]
    return {chr(b): b for b in plain} | {chr(0x100 + i): b for i, b in enumerate(rest)}


_BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def token_bytes(text, vocab: int, markers=()) -> tuple[list[bytes], bool]:
    """The bytes of all tokens, none for control tokens but `markers`, and whether an answer drops the space it begins with.
    Errors: UnsupportedError for a tokenizer whose texts are not their tokens' bytes in a row."""
    tok, alphabet = text.tokenizer, _alphabet()
    added = {i: (name, special) for i, name, special in text.added()}
    names = [tok.id_to_token(i) for i in range(min(vocab, tok.get_vocab_size()))]
    spaced = not any(n and "\u0120" in n for n in names) and any(n and n.startswith("\u2581") for n in names)

    def of(i, name):
        if name is None:
            return b""
        if i in added:
            return b"" if added[i][1] and name not in markers else name.encode()
        if spaced:
            byte = _BYTE.fullmatch(name)
            return bytes([int(byte[1], 16)]) if byte else name.replace("\u2581", " ").encode()
        return bytes(alphabet[c] for c in name) if all(c in alphabet for c in name) else name.encode()

    table = [of(i, n) for i, n in enumerate(names)]
    drop = spaced and not text.decode([next(i for i, b in enumerate(table) if b[:1] == b" " and len(b) > 1)]).startswith(" ")
    rng, usual = random.Random(1), [i for i in range(len(table)) if not (i in added and added[i][1])]
    for _ in range(TRIED):
        ids = rng.choices(usual, k=TRIED_TOKENS)
        joined = b"".join(table[i] for i in ids)
        said = (joined[1:] if drop and joined[:1] == b" " else joined).decode("utf-8", "replace")
        if said != text.decode(ids):
            raise UnsupportedError(f"tokenizer: its decoder writes {text.decode(ids)[:40]!r} where its tokens' bytes are {said[:40]!r}; vivace serve needs tokens that are bytes of the text")
    return table + [b""] * (vocab - len(table)), drop
