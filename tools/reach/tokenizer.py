#!/usr/bin/env python3
"""Makes the tokenizer of tiny-pi05: BPE as PaliGemma's is built (spaces are letters), from the prompts of
the task alone, so that every number of a state is one token.

    python tools/reach/tokenizer.py [FILE]
"""
import sys

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from vivace import _core
from vivace.demo import arm
from vivace.demo.reach import FOLDER, task

SPECIAL = ["<pad>", "<eos>", "<bos>", "<unk>"]  # 0 to 3, as PaliGemma has them


def prompts():
    tasks = [task(colour, shape) for colour in arm.COLOURS for shape in arm.SHAPES]
    for n in range(256):
        yield _core.prompt_parts("pi05", tasks[n % len(tasks)], [(n + 0.5) / 128 - 1] * arm.JOINTS)[1]
    yield _core.prompt_parts("pi05", tasks[0], [-2.0] * arm.JOINTS)[1]  # below its range: -1


def make() -> Tokenizer:
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True))
    t.normalizer = normalizers.Replace(" ", "\u2581")
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex("\u2581"), "merged_with_next"), pre_tokenizers.Split(Regex("[,;:\n]"), "isolated")])
    t.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.Fuse()])
    trainer = trainers.BpeTrainer(vocab_size=1024, special_tokens=[AddedToken(s, special=True) for s in SPECIAL], min_frequency=1, show_progress=False)
    t.train_from_iterator(prompts(), trainer)
    return t


if __name__ == "__main__":
    made = make()
    made.save(sys.argv[1] if len(sys.argv) > 1 else str(FOLDER / "tokenizer.json"))
    print(f"{made.get_vocab_size()} tokens; {made.encode(next(prompts())).tokens}")
