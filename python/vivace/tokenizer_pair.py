"""One vocabulary, two tokenizers of the tokenizers library: one knows the names of control tokens, to the other they are words.
Imports no part of vivace."""
from __future__ import annotations

GUARDS = "".join(map(chr, range(0xFDD0, 0xFDF0)))  # noncharacters: one stands for what text follows, where text does not begin
MAX_IDS_A_CHAR, MAX_IDS_MORE = 16, 64  # a character is at most 4 bytes, of a normalisation form at most 18 characters: far above any text's mean
LONG = 1 << 14  # characters: longer ones are encoded without the interpreter's lock, by a call that costs a little more


class Pair:
    """Both share the model's vocabulary and merges, and neither changes once it is made: threads may use them."""

    def __init__(self, tokenizer):
        self.special, self.plain, self._after = tokenizer, None, {}
        self._notes = _switch_off(tokenizer)

    def notes(self) -> list[str]:
        return self._notes

    def added(self) -> list:
        """[id, name, special, lstrip, rstrip] of each added token."""
        return [[i, t.content, t.special, t.lstrip, t.rstrip] for i, t in sorted(self.special.get_added_tokens_decoder().items())]

    def unknown(self) -> list[int]:
        """What stands for characters that the vocabulary lacks."""
        return [t.id for t in self.special.model.tokenize("\uffff")]

    def open(self, control) -> None:
        """`control`: ids of the tokens that the plain tokenizer does not know by name."""
        self._control = frozenset(control)
        self.plain = self._words()

    def _words(self, *more):
        from tokenizers import AddedToken, Tokenizer

        made = Tokenizer(self.special.model)
        for part in ("normalizer", "pre_tokenizer"):
            if (value := getattr(self.special, part)) is not None:
                setattr(made, part, value)
        added = sorted(self.special.get_added_tokens_decoder().items())
        flags = lambda t: dict(single_word=t.single_word, lstrip=t.lstrip, rstrip=t.rstrip, normalized=t.normalized)  # noqa: E731
        made.add_tokens([AddedToken(t.content, special=i in self._control, **flags(t)) for i, t in added])
        if moved := next((t.content for i, t in added if made.token_to_id(t.content) != i), None):
            raise ValueError(f"added token {moved!r} has another id than its place gives it")
        made.add_tokens([AddedToken(m, normalized=False) for m in more])
        made.encode_special_tokens = True
        return made

    def encode(self, how: str, text: str):
        """Ids, and where each comes from in characters of `text`. how: "special", "plain", or "after": plain text that goes on
        behind other text."""
        if how != "after":
            got = _encoded(self.special if how == "special" else self.plain, text)
            return got.ids, got.offsets
        guard = next((g for g in GUARDS if g not in text), None)
        if guard is None:
            raise ValueError("the text holds all 32 noncharacters from U+FDD0 on")
        if guard not in self._after:
            self._after[guard] = self._words(guard)
        got = _encoded(self._after[guard], guard + text)
        return got.ids[1:], [(a - 1, b - 1) for a, b in got.offsets[1:]]

    def decode(self, ids) -> str:
        return self.special.decode(ids, skip_special_tokens=True)

    def stream(self):
        """Returns f(id) -> text that became final with this token."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)
        return lambda token: stream.step(self.special, token) or ""


def _encoded(tokenizer, text: str):
    if len(text) > LONG:
        return tokenizer.encode_batch([text], add_special_tokens=False)[0]
    return tokenizer.encode(text, add_special_tokens=False)


def _switch_off(tokenizer) -> list[str]:
    """What training left in tokenizer.json and would change prompts: truncation, padding, dropout. Says which."""
    notes = []
    if tokenizer.truncation is not None:
        notes.append(f"saved truncation to {tokenizer.truncation.get('max_length')} tokens is not applied")
        tokenizer.no_truncation()
    if tokenizer.padding is not None:
        notes.append("saved padding is not applied")
        tokenizer.no_padding()
    if getattr(tokenizer.model, "dropout", None):
        notes.append("saved dropout of merges is not applied")
        tokenizer.model.dropout = None
    tokenizer.post_processor = None  # it would add tokens of its own: the beginning of text is added here, the rest is the chat template's
    return notes
