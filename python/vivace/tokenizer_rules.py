"""Which rules of a tokenizer.json are known to take time and memory in proportion to the text, whatever the text is. Others
(patterns of any kind, replacements that lengthen) run in a process of their own: tokenizer_bounded.py."""
from __future__ import annotations

# What splits text in published byte-level models. A pattern is used alone; `digits` puts every digit on its own; None is
# GPT-2's own split.
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
QWEN35 = QWEN2.replace(r"\p{L}+", r"[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]+", r"[^\s\p{L}\p{M}\p{N}]+")
PATTERNS = {LLAMA3, QWEN2, QWEN35, r"\p{N}{1,3}", r"\p{N}", "[0-9]", r"\d", "[0-9][0-9][0-9]", r"\s+", " {2,}", r"[\r\n]"}
NORMALIZERS = {"NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "BertNormalizer", "ByteLevel"}
PRE_TOKENIZERS = {"ByteLevel", "Digits", "Whitespace", "WhitespaceSplit", "Punctuation", "Metaspace", "BertPreTokenizer", "CharDelimiterSplit", "UnicodeScripts"}
DECODERS = {"ByteLevel", "ByteFallback", "Fuse", "Metaspace", "BPEDecoder", "WordPiece", "CTC"}
MAX_STEPS, MAX_CHARS, MAX_UNIGRAM_CHARS = 16, 16, 64  # rules one after the other; of what is put before a text; of a piece


def unusual(rules: dict, model: dict) -> str | None:
    """What of `rules` (normalizer, pre_tokenizer, decoder) and `model` (all but vocabulary and merges) is not known to be
    linear; None: all is, but for a unigram model with pieces of more than MAX_UNIGRAM_CHARS."""
    for part, known in (("normalizer", NORMALIZERS), ("pre_tokenizer", PRE_TOKENIZERS), ("decoder", DECODERS)):
        steps = list(_steps(rules.get(part)))
        if len(steps) > MAX_STEPS:
            return f"{part}: {len(steps)} steps"
        for step in steps:
            if why := _step(step, known):
                return f"{part}: {why}"
    kind = model.get("type", "BPE")
    if kind not in ("BPE", "WordPiece", "WordLevel", "Unigram"):
        return f"model: {str(kind)[:40]}"
    if kind == "WordPiece" and not _small(model.get("max_input_chars_per_word", 100), 200):
        return "model: max_input_chars_per_word"
    long = next((k for k in ("continuing_subword_prefix", "end_of_word_suffix") if len(str(model.get(k) or "")) > MAX_CHARS), None)
    return long and f"model: {long}"


def _steps(rule):
    """The rules of a sequence, however deep."""
    if isinstance(rule, dict) and rule.get("type") == "Sequence":
        for key in ("normalizers", "pretokenizers", "decoders"):
            for step in rule.get(key) or ():
                yield from _steps(step)
    elif rule is not None:
        yield rule


def _small(value, most: int) -> bool:
    return isinstance(value, int) and 0 <= value <= most


def _step(step, known) -> str | None:
    kind = step.get("type") if isinstance(step, dict) else None
    pattern = step.get("pattern") if kind in ("Replace", "Split") else None
    words = pattern.get("String") if isinstance(pattern, dict) else None
    regex = pattern.get("Regex") if isinstance(pattern, dict) else None
    if kind == "Replace":  # of no more characters than there were, one at a time or by a known pattern
        least = len(words) if isinstance(words, str) else 1
        if (words or regex in PATTERNS) and isinstance(step.get("content"), str) and len(step["content"]) <= least:
            return None
        return f"Replace of {str(words or regex)[:40]!r}"
    if kind == "Split":
        return None if words or regex in PATTERNS else f"Split at {str(words or regex)[:40]!r}"
    if kind == "Prepend":
        return None if isinstance(step.get("prepend"), str) and len(step["prepend"]) <= MAX_CHARS else "Prepend"
    if kind == "Strip" and "content" in step:  # the decoder's
        return None if all(_small(step.get(k, 0), MAX_CHARS) for k in ("start", "stop")) else "Strip"
    return None if kind in known else str(kind)[:40]
