"""Text to token ids such that words are words: whatever a caller writes, no control token comes of it."""
from __future__ import annotations

import array
import threading
from collections import OrderedDict
from contextlib import contextmanager
from string import punctuation

from vivace.errors import CorruptDataError, Error, InvalidArgumentError, LimitExceededError
from vivace.tokenizer_bounded import BoundedTokenizer
from vivace.tokenizer_pair import MAX_IDS_A_CHAR, MAX_IDS_MORE, Pair

MAX_TEXT_CHARS = 4 << 20
KEPT_CHARS = 4 << 20  # of turns whose ids are kept, all owners together
KEPT_MORE = 100  # characters' worth of memory beside each


@contextmanager
def refusals(what: str):
    """The tokenizers library has no class of its own for input that it refuses, and panics at some."""
    try:
        yield
    except Error:
        raise
    except BaseException as e:
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        raise CorruptDataError(f"{what}: the tokenizers library refuses it: {str(e)[:500]}") from e


def check_text(text, what: str) -> None:
    """InvalidArgumentError where `text` is no text."""
    if not isinstance(text, str):
        raise InvalidArgumentError(f"{what}: wanted a string, got {type(text).__name__}")
    try:
        text.encode()
    except UnicodeEncodeError as e:
        point = ord(text[e.start])
        how = f"the byte 0x{point - 0xDC00:02x}, which is no UTF-8" if 0xDC80 <= point <= 0xDCFF else f"U+{point:04X}, half of a surrogate pair"
        raise InvalidArgumentError(f"{what}: character {e.start} is {how}; decode the text correctly first") from None


def is_control(name: str, special: bool, template: str | None) -> bool:
    """Whether an added token steers: those the file says, those of the form <|...|>, and markers that the chat template
    writes. Other added tokens (runs of spaces, HTML tags) are parts of text, as models were trained. C++: control.h."""
    if special or (len(name) > 4 and name.startswith(("<|", "<\uff5c")) and name.endswith(("|>", "\uff5c>"))):
        return True
    return bool(template) and len(name) > 2 and name[0] in punctuation and name[-1] in punctuation and name in template


class Kept:
    """Ids of turns that were encoded before, those of the last use; a conversation's next prompt begins with them. Nobody
    finds another owner's: how long an encoding took would tell what others have said. Threads may share one."""

    def __init__(self, most_chars: int = KEPT_CHARS):
        self._most, self._chars, self._ids, self._lock = most_chars, 0, OrderedDict(), threading.Lock()

    def find(self, owner: str, text: str) -> array.array | None:
        with self._lock:
            if (ids := self._ids.get((owner, text))) is not None:
                self._ids.move_to_end((owner, text))
            return ids

    def keep(self, owner: str, text: str, ids) -> None:
        if len(text) > self._most // 4:
            return
        with self._lock:
            if (owner, text) not in self._ids:
                self._chars += len(text) + KEPT_MORE
            self._ids[owner, text] = array.array("i", ids)
            while self._chars > self._most:
                self._chars -= len(self._ids.popitem(last=False)[0][1]) + KEPT_MORE

    @property
    def chars(self) -> int:
        return self._chars


class Encoder:
    """A tokenizer with its limits, and which of its tokens are control tokens."""

    def __init__(self, tokenizer, template: str | None):
        self._pair = tokenizer if isinstance(tokenizer, BoundedTokenizer) else Pair(tokenizer)
        self.kept = Kept()
        with refusals("tokenizer"):
            self.notes = self._pair.notes()
            added = [(i, name, left, right) for i, name, special, left, right in self._pair.added() if is_control(name, special, template)]
            self.names = {i: name for i, name, _, _ in added}
            self._strips = {i: (left, right) for i, _, left, right in added}
            self._pair.open(list(self.names))
        try:  # what stands for characters that the vocabulary lacks is no forgery, unless it is a marker too
            with refusals("tokenizer"):
                unknown = self._pair.unknown() if self.names else ()
        except CorruptDataError:
            unknown = ()  # the first such character will say why
        self._forged = frozenset(i for i in self.names if i not in unknown or (template and self.names[i] in template))
        self._gap = next((c for c in "x.#0Q\u0416\u4e00" if not any(c in n for n in self.names.values())), "\ufdd1")

    def encode(self, text: str, *, special: bool = False, what: str = "text") -> list[int]:
        check_text(text, what)
        return self._run("special", text)[0] if special else self._words(text, "plain")

    def decode(self, ids) -> str:
        with refusals("tokenizer"):
            return self._pair.decode(list(ids))

    def added(self) -> list[tuple[int, str, bool]]:
        with refusals("tokenizer"):
            return [(i, name, special) for i, name, special, *_ in self._pair.added()]

    def stream(self):
        step = self._pair.stream()

        def guarded(token):
            with refusals("tokenizer"):
                return step(token)

        return guarded

    def rendered(self, text: str, words: list[tuple[int, int]], owner: str = "") -> list[int]:
        """Ids of what a template wrote, of which the stretches `words` are the caller's: control tokens come from the rest
        alone. Where no word looks like one, they are those of the text in one piece, exactly as the references do. Turns
        that `owner` had encoded before are not encoded again."""
        marks = self._marks(text, words)
        if (ids := self._by_turns(text, marks, owner)) is not None:
            return ids
        ids, offsets = self._run("special", text)
        found = [(i, *_trim(text, a, b)) for i, (a, b) in zip(ids, offsets) if i in self._forged]
        if found == marks:
            return ids
        out, at = [], 0
        for i, a, b in marks:
            left, right = self._strips[i]
            before = text[at:a].rstrip() if left else text[at:a]
            out += self._words(before, "after" if at else "plain") + [i]
            at = b + (len(text) - b - len(text[b:].lstrip()) if right else 0)
        return out + self._words(text[at:], "after" if at else "plain")

    def _by_turns(self, text, marks, owner) -> list[int] | None:
        """Ids of the pieces that begin with a control token of the template's: tokenizers cut there too. None where a piece
        holds another one, or a token takes white space of its neighbours."""
        if len(text) > MAX_TEXT_CHARS or any(any(self._strips[i]) for i, _, _ in marks):
            return None
        out = []
        cuts = [(None, 0), *((i, a) for i, a, _ in marks)]
        for (mark, a), b in zip(cuts, [*(a for _, a in cuts[1:]), len(text)]):
            if a == b:
                continue
            piece = text[a:b]
            ids = self.kept.find(owner, piece)
            if ids is None:
                ids = self._run("special", piece)[0]
                if [n for n, i in enumerate(ids) if i in self._forged] != [0] * (mark is not None) or (mark is not None and ids[0] != mark):
                    return None
                self.kept.keep(owner, piece, ids)
            out += ids
        return out

    def _marks(self, text, words) -> list[tuple[int, int, int]]:
        """Control tokens that the template wrote: id, begin, end. Found where a character that is in no name stands for
        each stretch of words."""
        parts, place, at = [], [], 0
        for a, b in [*words, (len(text), len(text))]:
            parts.append(text[at:a])
            place += range(at, a)
            if b > a:
                parts.append(self._gap)
                place.append(a)
            at = b
        skeleton = "".join(parts)
        ids, offsets = self._run("special", skeleton)
        marks = ((i, *_trim(skeleton, a, b)) for i, (a, b) in zip(ids, offsets) if i in self._forged)
        return [(i, place[a], place[b - 1] + 1) for i, a, b in marks if b > a]

    def _words(self, text: str, how: str, depth: int = 0) -> list[int]:
        """Ids of plain text. Where merges or a normalizer make a control token of it all the same, that is cut in two."""
        if not text:
            return []
        ids, offsets = self._run(how, text)
        forged = [(i, a) for i, (a, _) in zip(ids, offsets) if i in self._forged]
        if not forged:
            return ids
        cuts = sorted({c for _, a in forged for c in (a, a + 1) if 0 < c < len(text)})
        if not cuts or depth > 64:
            raise InvalidArgumentError(f"text: this tokenizer has no other token for {text[:20]!r} than the control token {self.names[forged[0][0]]!r}; take it out")
        out, at = [], 0
        for cut in [*cuts, len(text)]:
            out += self._words(text[at:cut], how if at == 0 else "after", depth + 1)
            at = cut
        return out

    def _run(self, how: str, text: str):
        if len(text) > MAX_TEXT_CHARS:
            raise LimitExceededError(f"text: {len(text)} characters, at most {MAX_TEXT_CHARS} are encoded")
        with refusals("tokenizer"):
            ids, offsets = self._pair.encode(how, text)
        if len(ids) > MAX_IDS_A_CHAR * len(text) + MAX_IDS_MORE:
            raise LimitExceededError(f"tokenizer: {len(ids)} tokens of {len(text)} characters, at most {MAX_IDS_A_CHAR} a character are accepted; pass token ids")
        return ids, offsets


def _trim(text: str, a: int, b: int) -> tuple[int, int]:
    """The stretch without the white space that some tokens take with them."""
    while b > a and text[b - 1].isspace():
        b -= 1
    while a < b and text[a].isspace():
        a += 1
    return a, b
