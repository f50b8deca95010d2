"""Text in and out of token ids: tokenizers built from a checkpoint, chat templates in a sandbox.

The tokenizer itself is the `tokenizers` library; this module only maps what GGUF and hub
checkpoints store onto it. Nothing here is imported until a model with text is used.
"""
from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path

from vivace import files
from vivace.chat import Chat
from vivace.encoder import Encoder, refusals
from vivace.errors import CorruptDataError, LimitExceededError, NotFoundError, UnsupportedError
from vivace.tokenizer_rules import LLAMA3, MAX_UNIGRAM_CHARS, QWEN2, QWEN35, unusual

MAX_RULES_BYTES = 16 << 10  # of tokenizer.json beyond its vocabulary, merges and added tokens: a pattern of 2 MB takes gigabytes
MAX_PIECE_CHARS = 512  # of a SentencePiece token: its splits are listed

# How GGUF's `tokenizer.ggml.pre` splits text before byte-level BPE.
_PRE = {
    "gpt-2": {}, "default": {},
    "smollm": {"digits": True},
    "llama-bpe": {"pattern": LLAMA3}, "llama3": {"pattern": LLAMA3},
    "qwen2": {"pattern": QWEN2, "nfc": True}, "qwen35": {"pattern": QWEN35, "nfc": True},
}
# GGUF token types. Control and user-defined tokens are matched whole.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5


@dataclass
class Text:
    """A checkpoint's tokenizer, its special ids and its chat template. Threads may share one."""

    tokenizer: object = field(repr=False)  # whose own text is the whole vocabulary's
    bos: int | None = None
    eos: list[int] = field(default_factory=list)  # every id that ends an answer
    add_bos: bool = False
    template: str | None = field(default=None, repr=False)

    def __post_init__(self):
        self._encoder = Encoder(self.tokenizer, self.template)
        name = lambda i: self.tokenizer.id_to_token(i) if i is not None else ""  # noqa: E731
        self._chat = Chat(self.template, name(self.bos), name(self.eos[0] if self.eos else None))

    @property
    def notes(self) -> list[str]:
        """What the tokenizer's file asks for that is not done."""
        return list(self._encoder.notes)

    @property
    def replies(self) -> dict:
        """How this checkpoint writes calls of tools and reasoning, going by its chat template: names of rows, or None."""
        from vivace import _core

        return dict(zip(("calls", "reasoning"), _core.reply_format(self.template or "")))

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`. Names of control tokens in `text` stay text unless `special` is set, so a user's words
        cannot forge a turn. Errors: InvalidArgumentError (no text), LimitExceededError."""
        return self._encoder.encode(text, special=special)

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the beginning-of-text token where the model wants one."""
        ids = self.encode(text)
        return [self.bos, *ids] if self.add_bos and self.bos is not None else ids

    def decode(self, ids) -> str:
        return self._encoder.decode(ids)

    def stream(self):
        """Returns f(id) -> text that became final with this token ("" while a character is incomplete)."""
        return self._encoder.stream()

    def chat_ids(self, messages: list[dict], *, add_generation_prompt: bool = True, **values) -> list[int]:
        """Ids of a conversation through the chat template; `values` are more that it may ask for (tools, documents,
        enable_thinking). Every string in messages and values is words: control tokens come from the template alone.
        Errors: InvalidArgumentError names the message; UnsupportedError where the template does what cannot be followed."""
        return self.chat_prompt(messages, add_generation_prompt=add_generation_prompt, **values)[0]

    def chat_prompt(self, messages: list[dict], *, add_generation_prompt: bool = True, images: bool = False, owner: str = "", **values) -> tuple[list[int], str]:
        """chat_ids(), and the text that they are of. `images`: parts {"type": "image"} are taken, each of which the template writes a control token for.
        `owner`: whose turns it is that need not be encoded again; another one's are never found."""
        text, words = self._chat.render(messages, {"add_generation_prompt": add_generation_prompt, **values}, images)
        return self._encoder.rendered(text, words, owner), text

    def added(self) -> list[tuple[int, str, bool]]:
        """Tokens beside the vocabulary: id, name, whether its file calls it special."""
        return self._encoder.added()

    def render(self, messages: list[dict], *, add_generation_prompt: bool = True, **values) -> str:
        """The text of a conversation, as the template writes it."""
        return self._chat.render(messages, {"add_generation_prompt": add_generation_prompt, **values})[0]


def load_text(path: str, metadata: dict, *, checkpoint: str | None = None, generation_config: bool = True) -> Text:
    """Builds the tokenizer of the checkpoint at `path`; `metadata` is its GGUF metadata (or {}). It takes at most
    4 x the checkpoint's files + 64 MB, whatever they say, and LimitExceededError where it would take more. The files
    are those beside the tokenizer, and those of `checkpoint` where the weights are elsewhere. `generation_config`: whether that file's
    tokens end an answer, where it names some."""
    file = Path(path)
    if "tokenizer.ggml.model" in metadata:
        return _from_gguf(metadata, _Budget(path, files.stored_bytes(file) if path and file.is_file() else None))
    folder = file if file.is_dir() else file.parent
    return _from_hub(folder, _Budget(folder, files.stored_bytes(folder, *([checkpoint] if checkpoint else []))), generation_config)


class _Budget:
    """Counts what a tokenizer will take before it is built: the library that builds it has no bound of its own. The
    bytes an entry takes were measured (tests/test_memory_bound.py holds them)."""

    def __init__(self, what, stored: int | None):
        self.what, self.room, self.bytes = what, None if stored is None else 4 * stored + (64 << 20), 0

    def spend(self, amount: int) -> None:
        self.bytes += amount
        if self.room is not None and self.bytes > self.room:
            raise LimitExceededError(f"{self.what}: its tokenizer would take more than {self.room >> 20} MB (4 x the checkpoint's files + 64 MB); pass token ids (generate_ids)")

    def tokenizer_json(self, data: bytes, file: str) -> str | None:
        """Counts a tokenizer.json; what of its rules is unusual, if anything is."""
        from vivace import _core

        parts = {key: {m[0]: m[1:] for m in _core.json_members(data, file, key)} for key in ("", "model")}
        members = parts[""] | parts["model"]
        vocab, merges, added = (members.get(k, (0, 0, False, 0)) for k in ("vocab", "merges", "added_tokens"))
        rules = len(data) - vocab[0] - merges[0] - added[0]
        if rules > MAX_RULES_BYTES:
            raise LimitExceededError(f"{file}: {rules} bytes beside vocabulary, merges and added tokens, at most {MAX_RULES_BYTES} are accepted; pass token ids (generate_ids)")
        self.spend(2 * len(data) + 300 * vocab[1] + (100 if vocab[2] else 3) * vocab[0] + (620 if merges[2] else 170) * merges[1] + 3 * merges[0]
                   + 500 * added[1] + 80 * max(0, added[0] - 100 * added[1]) + 2048 * rules)

        def read(part, skip):
            return {k: _value(data[at:at + size]) for k, (size, _, _, at) in parts[part].items() if k not in skip}
        return unusual(read("", ("model", "added_tokens")), read("model", ("vocab", "merges")))


_KEY = re.compile(r'(?:[^"\\]|\\.)*"\s*:\s*')


def _value(member: bytes):
    """A member's value, of its bytes as json_members has them: from within the key on."""
    text = member.decode("utf-8", "replace")
    return json.JSONDecoder().raw_decode(text, _KEY.match(text).end())[0]


def _of_json(data: bytes, file: str, budget: _Budget):
    """The tokenizer of a tokenizer.json: in this process where its rules are known to be linear."""
    from tokenizers import Tokenizer

    with refusals(file):
        why = budget.tokenizer_json(data, file)
        if why is None:
            made = Tokenizer.from_buffer(data)
            if type(made.model).__name__ != "Unigram" or max(map(len, made.get_vocab()), default=0) <= MAX_UNIGRAM_CHARS:
                return made
            why = f"model: a piece of more than {MAX_UNIGRAM_CHARS} characters"
            del made
    from vivace.tokenizer_bounded import BoundedTokenizer

    return BoundedTokenizer(data, file, why)


def _entries(meta: dict, key: str, kind) -> list | None:
    """A list of metadata, checked: a file may keep anything under any key."""
    value = meta.get(key)
    if value is not None and not (isinstance(value, list) and all(isinstance(x, kind) for x in value)):
        raise CorruptDataError(f"{key}: wanted a list of {kind[0].__name__ if isinstance(kind, tuple) else kind.__name__}, got {str(value)[:40]}")
    return value


def _token_id(meta: dict, key: str, count: int) -> int | None:
    value = meta.get(key)
    if value is not None and not (type(value) is int and 0 <= value < count):
        raise CorruptDataError(f"{key}: wanted a token, got {str(value)[:40]} of {count}")
    return value


def _from_gguf(meta: dict, budget: _Budget) -> Text:
    with refusals("tokenizer.ggml"):
        return _build_gguf(meta, budget)


def _build_gguf(meta: dict, budget: _Budget) -> Text:
    from tokenizers import AddedToken

    kind = meta["tokenizer.ggml.model"]
    if kind == "no_vocab":
        return _from_gguf_json(meta, budget)
    tokens = _entries(meta, "tokenizer.ggml.tokens", str)
    if not tokens:
        raise CorruptDataError("tokenizer.ggml.tokens: wanted a list of tokens, got none")
    budget.spend(sum(600 + 8 * len(t) for t in tokens))
    vocab = {t: i for i, t in enumerate(tokens)}
    if len(vocab) != len(tokens):
        raise CorruptDataError(f"tokenizer.ggml.tokens: {len(tokens) - len(vocab)} duplicates")
    types = _entries(meta, "tokenizer.ggml.token_type", int) or [_NORMAL] * len(tokens)
    if len(types) != len(tokens):
        raise CorruptDataError(f"tokenizer.ggml.token_type: wanted {len(tokens)} entries, got {len(types)}")
    if kind == "gpt2":
        tok = _byte_level(meta, vocab, budget)
    elif kind == "llama":
        tok = _sentence_piece(meta, tokens, vocab, types, budget)
    else:
        raise UnsupportedError(f"tokenizer.ggml.model: wanted gpt2 (byte-level BPE) or llama (SentencePiece BPE), got {kind!r}; pass token ids instead")
    budget.spend(sum(500 + 80 * len(t) for t, k in zip(tokens, types) if k in (_CONTROL, _USER_DEFINED)))
    added = [AddedToken(t, special=k == _CONTROL, normalized=False) for t, k in zip(tokens, types) if k in (_CONTROL, _USER_DEFINED)]
    tok.add_special_tokens([a for a in added if a.special])
    tok.add_tokens([a for a in added if not a.special])
    return _with_ids(tok, meta, len(tokens), add_bos=kind == "llama")


def _from_gguf_json(meta: dict, budget: _Budget) -> Text:
    """A tokenizer.json inside GGUF, as `vivace convert` puts it there."""
    source = meta.get("tokenizer.huggingface.json")
    if not isinstance(source, str):
        raise NotFoundError("tokenizer.ggml.model: this file has no tokenizer; pass token ids (generate_ids)")
    budget.spend(5 * len(source))  # the text itself
    data = source.encode("utf-8", "surrogateescape")
    tok = _of_json(data, "tokenizer.huggingface.json", budget)
    return _with_ids(tok, meta, tok.get_vocab_size(), add_bos=False)


def _with_ids(tok, meta: dict, count: int, add_bos: bool) -> Text:
    ids = {k: _token_id(meta, f"tokenizer.ggml.{k}_token_id", count) for k in ("bos", "eos", "eot", "eom")}
    eos = [ids[k] for k in ("eos", "eot", "eom") if ids[k] is not None]
    template = meta.get("tokenizer.chat_template")
    if not (template is None or isinstance(template, str)):
        raise CorruptDataError(f"tokenizer.chat_template: wanted a text, got {str(template)[:40]}")
    return Text(tok, bos=ids["bos"], eos=list(dict.fromkeys(eos)), add_bos=bool(meta.get("tokenizer.ggml.add_bos_token", add_bos)), template=template)


def _byte_level(meta: dict, vocab: dict, budget: _Budget):
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

    pre = meta.get("tokenizer.ggml.pre", "default")
    if pre not in _PRE:
        raise UnsupportedError(f"tokenizer.ggml.pre: wanted one of {', '.join(sorted(_PRE))}, got {pre!r}")
    merges = _entries(meta, "tokenizer.ggml.merges", str)
    if merges is None:
        raise CorruptDataError("tokenizer.ggml.merges: wanted a list of merges, got none")
    budget.spend(sum(500 + 8 * len(m) for m in merges))
    pairs = [tuple(m.split(" ", 1)) for m in merges]
    bad = next((m for m, p in zip(merges, pairs) if len(p) != 2), None)
    if bad is not None:
        raise CorruptDataError(f"tokenizer.ggml.merges: wanted two words a merge, got {bad!r}")
    tok = Tokenizer(models.BPE(vocab=vocab, merges=pairs, ignore_merges=pre in ("llama-bpe", "llama3")))
    rule = _PRE[pre]
    if rule.get("nfc"):
        tok.normalizer = normalizers.NFC()
    if "pattern" in rule:
        steps = [pre_tokenizers.Split(Regex(rule["pattern"]), "isolated"), pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    else:
        steps = [pre_tokenizers.Digits(individual_digits=True)] if rule.get("digits") else []
        steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True))
    tok.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tok.decoder = decoders.ByteLevel()
    return tok


def _sentence_piece(meta: dict, tokens: list, vocab: dict, types: list, budget: _Budget):
    """SentencePiece's BPE: the pair whose union has the best score is merged first. As ranked merges that is:
    every split of every token into two, best score first; of one token's splits the longest left part first."""
    from tokenizers import Tokenizer, decoders, models, normalizers

    scores = _entries(meta, "tokenizer.ggml.scores", (float, int))
    if scores is None or len(scores) != len(tokens):
        raise CorruptDataError(f"tokenizer.ggml.scores: wanted {len(tokens)} entries, got {'none' if scores is None else len(scores)}")
    # Only what merging can reach: pieces, and not the names of bytes and of special tokens. A vocabulary of 262,144
    # pieces has a million splits: they share the pieces' own strings and numbers.
    pieces = {t: t for t, k in zip(tokens, types) if k in (_NORMAL, _UNUSED) or (k == _USER_DEFINED and len(t) == 1)}
    merges, find = [], pieces.get
    for t in pieces:
        if len(t) > MAX_PIECE_CHARS:
            raise LimitExceededError(f"tokenizer.ggml.tokens: a token of {len(t)} characters, at most {MAX_PIECE_CHARS} are accepted")
        worst, number = -scores[vocab[t]], vocab[t]
        for cut in range(1, len(t)):
            if (left := find(t[:cut])) is not None and (right := find(t[cut:])) is not None:
                merges.append((worst, number, len(t) - cut, left, right))
                budget.spend(450)
    merges.sort()
    unknown = _token_id(meta, "tokenizer.ggml.unknown_token_id", len(tokens))
    if unknown is None:
        unknown = next((i for i, k in enumerate(types) if k == _UNKNOWN), None)
    tok = Tokenizer(models.BPE(vocab=vocab, merges=[m[3:] for m in merges], fuse_unk=True, byte_fallback=True,
                               unk_token=None if unknown is None else tokens[unknown]))
    prefix = bool(meta.get("tokenizer.ggml.add_space_prefix", True))
    spaces = normalizers.Replace(" ", "\u2581")
    tok.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), spaces]) if prefix else spaces
    steps = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()]
    tok.decoder = decoders.Sequence(steps + ([decoders.Strip(" ", 1, 0)] if prefix else []))
    return tok


def _from_hub(folder: Path, budget: _Budget, generation_config: bool) -> Text:
    file = folder / "tokenizer.json"
    source = files.read_optional(file)
    if source is None:
        raise NotFoundError(f"{file}: no tokenizer beside the checkpoint; pass token ids (generate_ids) or add the file")
    tok = _of_json(source, str(file), budget)
    del source
    config, generation = _json(folder / "tokenizer_config.json", budget), _json(folder / "generation_config.json", budget) if generation_config else {}
    template = config.get("chat_template")
    if (alone := _text_of(folder / "chat_template.jinja", budget)) is not None:
        template = alone
    if isinstance(template, list):  # named templates: the default one
        template = next((t.get("template") for t in template if isinstance(t, dict) and t.get("name") == "default"), None)
    if not (template is None or isinstance(template, str)):
        raise CorruptDataError(f"{folder}: chat_template: wanted a text, got {str(template)[:40]}")

    def token_id(name):
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if not (value is None or isinstance(value, str)):
            raise CorruptDataError(f"{folder}/tokenizer_config.json: {name}: wanted a token's text, got {str(value)[:40]}")
        with refusals(f"{folder}/tokenizer_config.json: {name}"):
            return tok.token_to_id(value) if value else None

    eos = generation.get("eos_token_id", token_id("eos_token"))
    eos = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if bad := [i for i in eos if type(i) is not int or not 0 <= i < 1 << 31]:
        raise CorruptDataError(f"{folder}/generation_config.json: eos_token_id: wanted token ids, got {str(bad[0])[:40]}")
    return Text(tok, bos=token_id("bos_token"), eos=eos, add_bos=bool(config.get("add_bos_token", False)), template=template)


def _text_of(file: Path, budget: _Budget) -> str | None:
    """None where there is no such file."""
    if (data := files.read_optional(file)) is None:
        return None
    budget.spend(5 * len(data))
    return files.text_of(data, file)


def _json(file: Path, budget: _Budget) -> dict:
    """An object of JSON; {} where there is no such file."""
    if (source := _text_of(file, budget)) is None:
        return {}
    budget.spend(4 * len(source) + 320 * source.count(",") + 240 * source.count("{") + 96 * source.count("["))
    return files.json_object(source, file)
