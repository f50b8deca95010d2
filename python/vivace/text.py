"""Text in and out of token ids: tokenizers built from a checkpoint, chat templates in a sandbox.

The tokenizer itself is the `tokenizers` library; this module only maps what GGUF and hub
checkpoints store onto it. Nothing here is imported until a model with text is used.
"""
from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from vivace.errors import CorruptDataError, Error, InvalidDTypeError, LimitExceededError, NotFoundError, UnsupportedError

MAX_FILE_BYTES = 64 << 20  # of tokenizer.json and what stands beside it
MAX_RULES_BYTES = 16 << 10  # of tokenizer.json beyond its vocabulary, merges and added tokens: a pattern of 2 MB takes gigabytes
MAX_PIECE_CHARS = 512  # of a SentencePiece token: its splits are listed

# How GGUF's `tokenizer.ggml.pre` splits text before byte-level BPE. A pattern is used alone; `digits`
# puts every digit on its own; None is GPT-2's own split.
_LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_PRE = {
    "gpt-2": {}, "default": {},
    "smollm": {"digits": True},
    "llama-bpe": {"pattern": _LLAMA3}, "llama3": {"pattern": _LLAMA3},
    "qwen2": {"pattern": _QWEN2, "nfc": True},
}
# GGUF token types. Control and user-defined tokens are matched whole.
_NORMAL, _UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED = 1, 2, 3, 4, 5


@dataclass
class Text:
    """A checkpoint's tokenizer, its special ids and its chat template."""

    tokenizer: object
    bos: int | None = None
    eos: list[int] = field(default_factory=list)  # every id that ends an answer
    add_bos: bool = False
    template: str | None = None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Token ids of `text`. Names of special tokens in `text` stay text unless `special` is set, so a
        user's words cannot forge a turn."""
        # tokenizers calls "encode special tokens as text" `encode_special_tokens`.
        self.tokenizer.encode_special_tokens = not special
        with _refusals("tokenizer"):
            return self.tokenizer.encode(text, add_special_tokens=False).ids

    def prompt_ids(self, text: str) -> list[int]:
        """Ids of a plain prompt, with the beginning-of-text token where the model wants one."""
        ids = self.encode(text)
        return [self.bos, *ids] if self.add_bos and self.bos is not None else ids

    def decode(self, ids) -> str:
        with _refusals("tokenizer"):
            return self.tokenizer.decode(list(ids), skip_special_tokens=True)

    def stream(self):
        """Returns f(id) -> text that became final with this token ("" while a character is incomplete)."""
        from tokenizers.decoders import DecodeStream

        stream = DecodeStream(skip_special_tokens=True)

        def step(token):
            with _refusals("tokenizer"):
                return stream.step(self.tokenizer, token) or ""

        return step

    def chat_ids(self, messages: list[dict], *, add_generation_prompt: bool = True) -> list[int]:
        """Ids of a conversation through the chat template. Message text is encoded as plain text: special
        tokens come from the template alone."""
        return _encode_rendered(self, messages, add_generation_prompt)

    def render(self, messages: list[dict], *, add_generation_prompt: bool = True) -> str:
        return _render(self, messages, add_generation_prompt)


def load_text(path: str, metadata: dict, *, checkpoint: str | None = None) -> Text:
    """Builds the tokenizer of the checkpoint at `path`; `metadata` is its GGUF metadata (or {}). It takes at most
    4 x the checkpoint's files + 64 MB, whatever they say, and LimitExceededError where it would take more. The files
    are those beside the tokenizer, and those of `checkpoint` where the weights are elsewhere."""
    file = Path(path)
    if "tokenizer.ggml.model" in metadata:
        return _from_gguf(metadata, _Budget(path, file.stat().st_size if path and file.is_file() else None))
    folder = file if file.is_dir() else file.parent
    return _from_hub(folder, _Budget(folder, _size(folder, *([Path(checkpoint)] if checkpoint else []))))


def _size(*places: Path) -> int:
    """Bytes of files and of folders' own files, each once."""
    files = {f.resolve() for place in places for f in (place.iterdir() if place.is_dir() else [place])}
    return sum(f.stat().st_size for f in files if f.is_file())


class _Budget:
    """Counts what a tokenizer will take before it is built: the library that builds it has no bound of its own. The
    bytes an entry takes were measured (tests/test_memory_bound.py holds them)."""

    def __init__(self, what, files: int | None):
        self.what, self.room, self.bytes = what, None if files is None else 4 * files + (64 << 20), 0

    def spend(self, amount: int) -> None:
        self.bytes += amount
        if self.room is not None and self.bytes > self.room:
            raise LimitExceededError(f"{self.what}: its tokenizer would take more than {self.room >> 20} MB, which is 4 x the checkpoint's files + 64 MB; pass token ids (generate_ids)")

    def tokenizer_json(self, data: bytes, file: str) -> None:
        from vivace import _core

        try:
            members = {k: (size, count, nested) for key in ("", "model") for k, size, count, nested in _core.json_members(data, file, key)}
        except InvalidDTypeError as e:
            raise CorruptDataError(str(e)) from None
        vocab, merges, added = (members.get(k, (0, 0, False)) for k in ("vocab", "merges", "added_tokens"))
        rules = len(data) - vocab[0] - merges[0] - added[0]
        if rules > MAX_RULES_BYTES:
            raise LimitExceededError(f"{file}: {rules} bytes beside vocabulary, merges and added tokens, at most {MAX_RULES_BYTES} are accepted; pass token ids (generate_ids)")
        self.spend(2 * len(data) + 300 * vocab[1] + (100 if vocab[2] else 3) * vocab[0] + (620 if merges[2] else 170) * merges[1] + 3 * merges[0]
                   + 500 * added[1] + 80 * max(0, added[0] - 100 * added[1]) + 2048 * rules)


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
    with _refusals("tokenizer.ggml"):
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
    from tokenizers import Tokenizer

    source = meta.get("tokenizer.huggingface.json")
    if not isinstance(source, str):
        raise NotFoundError("tokenizer.ggml.model: this file has no tokenizer; pass token ids (generate_ids)")
    budget.spend(5 * len(source))  # the text itself
    data = source.encode("utf-8", "surrogateescape")
    budget.tokenizer_json(data, "tokenizer.huggingface.json")
    tok = Tokenizer.from_buffer(data)
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


def _from_hub(folder: Path, budget: _Budget) -> Text:
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    if not file.exists():
        raise NotFoundError(f"{file}: no tokenizer beside the checkpoint; pass token ids (generate_ids) or add the file")
    source = _bytes_of(file)
    with _refusals(str(file)):
        budget.tokenizer_json(source, str(file))
        tok = Tokenizer.from_buffer(source)
    del source
    config, generation = _json(folder / "tokenizer_config.json", budget), _json(folder / "generation_config.json", budget)
    template = config.get("chat_template")
    if (folder / "chat_template.jinja").exists():
        template = _text_of(folder / "chat_template.jinja", budget)
    if isinstance(template, list):  # named templates: the default one
        template = next((t.get("template") for t in template if isinstance(t, dict) and t.get("name") == "default"), None)
    if not (template is None or isinstance(template, str)):
        raise CorruptDataError(f"{folder}: chat_template: wanted a text, got {str(template)[:40]}")

    def token_id(name):
        value = config.get(name)
        value = value.get("content") if isinstance(value, dict) else value
        if not (value is None or isinstance(value, str)):
            raise CorruptDataError(f"{folder}/tokenizer_config.json: {name}: wanted a token's text, got {str(value)[:40]}")
        with _refusals(f"{folder}/tokenizer_config.json: {name}"):
            return tok.token_to_id(value) if value else None

    eos = generation.get("eos_token_id", token_id("eos_token"))
    eos = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if bad := [i for i in eos if type(i) is not int or not 0 <= i < 1 << 31]:
        raise CorruptDataError(f"{folder}/generation_config.json: eos_token_id: wanted token ids, got {str(bad[0])[:40]}")
    return Text(tok, bos=token_id("bos_token"), eos=eos, add_bos=bool(config.get("add_bos_token", False)), template=template)


def _bytes_of(file: Path) -> bytes:
    if (size := file.stat().st_size) > MAX_FILE_BYTES:
        raise LimitExceededError(f"{file}: {size} bytes, at most {MAX_FILE_BYTES} are accepted")
    return file.read_bytes()


def _text_of(file: Path, budget: _Budget) -> str:
    data = _bytes_of(file)
    budget.spend(5 * len(data))
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise CorruptDataError(f"{file}: it is no UTF-8 text: {e}") from None


def _json(file: Path, budget: _Budget) -> dict:
    """An object of JSON; {} where there is no such file."""
    if not file.exists():
        return {}
    source = _text_of(file, budget)
    budget.spend(4 * len(source) + 320 * source.count(",") + 240 * source.count("{") + 96 * source.count("["))
    try:
        value = json.loads(source)
    except (ValueError, RecursionError) as e:
        raise CorruptDataError(f"{file}: {e}") from None
    if not isinstance(value, dict):
        raise CorruptDataError(f"{file}: wanted an object, got {type(value).__name__}")
    return value


@contextmanager
def _refusals(what: str):
    """The tokenizers library has no class of its own for input that it refuses, and panics at some."""
    try:
        yield
    except Error:
        raise
    except BaseException as e:
        if not isinstance(e, Exception) and type(e).__name__ != "PanicException":
            raise
        raise CorruptDataError(f"{what}: the tokenizers library refuses it: {str(e)[:500]}") from e


def _render(text: Text, messages, add_generation_prompt) -> str:
    from vivace import template

    if not text.template:
        raise NotFoundError("this checkpoint has no chat template; call generate with a plain prompt")
    name = lambda i: text.tokenizer.id_to_token(i) if i is not None else ""
    return template.render(text.template, messages=messages, add_generation_prompt=add_generation_prompt, tools=None, documents=None,
                           bos_token=name(text.bos), eos_token=name(text.eos[0] if text.eos else None))


def _encode_rendered(text: Text, messages, add_generation_prompt) -> list[int]:
    """Special tokens are recognised only where the template put them. Messages without their names (the
    ordinary case) are encoded with the template in one piece, exactly as the references do."""
    rendered = _render(text, messages, add_generation_prompt)
    names = [t.content for t in text.tokenizer.get_added_tokens_decoder().values() if t.special]
    contents = [m["content"] for m in messages if isinstance(m.get("content"), str)]
    if not any(name in content for name in names for content in contents):
        return text.encode(rendered, special=True)
    ids, at = [], 0
    for content in contents:
        content = content if content in rendered[at:] else content.strip()  # many templates trim
        start = rendered.find(content, at)
        if start < 0:
            raise UnsupportedError("chat template: it rewrites a message that contains the name of a special token; remove the name")
        ids += text.encode(rendered[at:start], special=True) + text.encode(content)
        at = start + len(content)
    return ids + text.encode(rendered[at:], special=True)
