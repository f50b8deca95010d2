"""Chat prompt -> token ids for GGUF files with tokenizer model "gpt2" and pre-tokenizer "smollm".

SmolLM splits every digit off on its own and then applies GPT-2's byte-level split; there is no
normalisation and no BOS is added (`tokenizer.ggml.add_bos_token` is false; the template writes
`<|im_start|>` itself, which is a control token and matches before any splitting).
"""
from __future__ import annotations

from pathlib import Path

import jinja2.sandbox
from gguf import GGUFReader
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

CONTROL = 3  # gguf token type


class ChatTokenizer:
    def __init__(self, path: str | Path):
        fields = GGUFReader(str(path)).fields

        def meta(key):
            return fields[f"tokenizer.{key}"].contents()

        if (meta("ggml.model"), meta("ggml.pre")) != ("gpt2", "smollm"):
            raise ValueError(f"expected tokenizer gpt2/smollm, got {meta('ggml.model')}/{meta('ggml.pre')}")
        tokens, merges = meta("ggml.tokens"), meta("ggml.merges")
        tok = Tokenizer(models.BPE(vocab={t: i for i, t in enumerate(tokens)},
                                   merges=[tuple(m.split(" ")) for m in merges]))
        tok.pre_tokenizer = pre_tokenizers.Sequence([
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)])
        tok.decoder = decoders.ByteLevel()
        tok.add_special_tokens([AddedToken(t, special=True, normalized=False)
                                for t, kind in zip(tokens, meta("ggml.token_type")) if kind == CONTROL])
        if tok.get_vocab_size() != len(tokens):
            raise ValueError(f"{tok.get_vocab_size()} distinct tokens, the file lists {len(tokens)}")
        self.tokenizer = tok
        self.eos_id = meta("ggml.eos_token_id")
        env = jinja2.sandbox.ImmutableSandboxedEnvironment()
        self.template = env.from_string(meta("chat_template"))

    def chat_ids(self, messages: list[dict]) -> list[int]:
        text = self.template.render(messages=messages, add_generation_prompt=True)
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, ids) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=False)
