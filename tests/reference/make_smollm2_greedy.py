"""Writes tests/fixtures/smollm2_greedy.json: prompts, token ids and greedy answers of SmolLM2-135M-Instruct.

    python -m tests.reference.make_smollm2_greedy SmolLM2-135M-Instruct.Q4_1.gguf

The values are the NumPy reference's in float64. A step's gap is its top-1 minus top-2 logit.

Why the q8 prompts are what they are: in q8 mode a difference in the last float32 bit can move one int8
code, which moves later activations by far more than a rounding error, so two correct engines differ by
tenths of a logit in this small model. `margin_noise` measures that: the largest change of any step's
gap when the same tokens are run in float32 instead. Prompts with q8 answers were chosen so that every
gap stays well above zero in both precisions (this script refuses others); free text seldom does, so the last prompts have
f32 answers only, where the noise is a few 1e-6.
"""
from __future__ import annotations

import argparse
import hashlib
import json
import re
from pathlib import Path

import numpy as np

from .llama_numpy import Llama
from .smollm2_tokenizer import ChatTokenizer

OUT = Path(__file__).resolve().parents[1] / "fixtures" / "smollm2_greedy.json"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
TOKENS = 64
MIN_GAP = {"q8": 0.4, "f32": 1e-3}

FRENCH = ("Le printemps est arrivé dans la vallée. Les oiseaux chantent dès le matin, les enfants jouent près "
          "de la rivière et les fleurs couvrent les prés. Le soir, une brise légère apporte l'odeur de l'herbe, "
          "et tout le village se retrouve sur la place pour parler du temps qui passe.")
CODE = ('def gcd(a, b):\n    """Greatest common divisor of two non-negative integers."""\n    while b != 0:\n'
        "        a, b = b, a % b\n    return a\n\n\nprint(gcd(48, 36))\nprint(gcd(17, 5))\nprint(gcd(100, 75))\n"
        "print(gcd(0, 9))\n")
STATE = ('{"robot": "arm-7", "joints": [0.12, -1.57, 0.88, 2.04, -0.33, 0.0, 1.21], "gripper": {"open": true, '
         '"force_newton": 3.5}, "camera": {"width": 640, "height": 480, "fps": 30}, "status": "ready"}')


def ask(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


def again(text: str, answer: str) -> list[dict]:
    return [*ask(text), {"role": "assistant", "content": answer}, *ask(text + " Give exactly the same answer again.")]


BOTH, F32 = ("q8", "f32"), ("f32",)
PROMPTS = [
    ("count_up", ask("What are the first 40 positive integers, one per line?"), BOTH),
    ("count_down", ask("Count backwards from 40 to 1, separated by commas."), BOTH),
    ("recall_french", again("Écris quelques phrases sur le printemps.", FRENCH), BOTH),
    ("recall_code", again("Write a Python function that computes the greatest common divisor.", CODE), BOTH),
    ("recall_json", again("Give me the robot's state as JSON.", STATE), BOTH),  # reaches <|im_end|> and goes on
    ("capital", ask("What is the capital of France?"), F32),
    ("bicycle", ask("Explain how a bicycle stays upright."), F32),
    ("paint", ask("Tell me a story about a robot who learns to paint."), F32),
]

TEXTS = ["Hello, world! 12345 naïve café 日本語 🙂🚀\n\n  indented\tcode() { return x+1; }  ",
         "It's 3.14, isn't it? 2026-11-21T04:03", "a   b\n c \r\n d", "<|im_start|>user\nHi<|im_end|>\n",
         "x1y22 z333", "１２３ ٣ Ⅷ ² ", "don't DON'T we'll I'm you've", "   ", "\n\n\n", ""]


def margins(model: Llama, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """Chosen logit minus the best other one at every step, with the tokens given: [len(tokens)]."""
    model.reset()
    logits = model.forward(prompt + tokens[:-1], all_logits=True)[len(prompt) - 1:]
    steps = np.arange(len(tokens))
    chosen = logits[steps, tokens].copy()
    logits[steps, tokens] = -np.inf
    return chosen - logits.max(axis=1)


def main() -> None:
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("gguf", type=Path)
    ap.add_argument("--out", type=Path, default=OUT)
    args = ap.parse_args()
    digest = hashlib.sha256(args.gguf.read_bytes()).hexdigest()
    if digest != SHA256:
        raise SystemExit(f"{args.gguf} has sha256 {digest}, wanted {SHA256}")

    chat = ChatTokenizer(args.gguf)
    prompts = [{"name": name, "messages": messages, "ids": chat.chat_ids(messages), "greedy": {}}
               for name, messages, _ in PROMPTS]
    model = Llama(args.gguf)
    for act in ("q8", "f32"):
        chosen = [p for p, (_, _, acts) in zip(prompts, PROMPTS) if act in acts]
        model.configure(act, np.float64)
        answers = model.greedy_batch([p["ids"] for p in chosen], TOKENS)
        model.configure(act, np.float32)
        for p, (tokens, gaps) in zip(chosen, answers):
            rounded = margins(model, p["ids"], tokens)
            noise, least = float(np.abs(rounded - gaps).max()), min(gaps)
            print(f"{p['name']} {act}: {len(p['ids'])} prompt tokens, min gap {least:.4f} (in float32 "
                  f"{rounded.min():.4f}), noise {noise:.2g}", flush=True)
            if least < MIN_GAP[act] or rounded.min() < MIN_GAP[act] / 2:
                raise SystemExit(f"{p['name']}: a near-tie in {act}; choose another prompt")
            p["greedy"][act] = {"tokens": tokens, "gaps": [round(g, 5) for g in gaps], "min_gap": round(least, 5),
                                "margin_noise": float(f"{noise:.2g}"), "text": chat.decode(tokens)}
    texts = [{"text": t, "ids": chat.tokenizer.encode(t, add_special_tokens=False).ids} for t in TEXTS]
    out = {"gguf": {"file": args.gguf.name, "sha256": digest}, "source": "tests/reference/make_smollm2_greedy.py",
           "eos_id": chat.eos_id, "stops_at_eos": False, "prompts": prompts, "tokenizer": texts}
    text = json.dumps(out, ensure_ascii=False, indent=1)
    text = re.sub(r"\[[-\d.,\s]+\]", lambda m: re.sub(r"\s+", " ", m[0]), text)  # a list of numbers on one line
    args.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
