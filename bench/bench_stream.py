"""Delay of each word of a stream: from where the word ends in the sound to where its text was stable, for both policies, as if computing
took no time. Five sentences of a novel with pauses between them; when words end is what the same model says of the whole file.

    python bench/bench_stream.py [--models whisper-tiny.en whisper-base] [--steps 0.5 1.0] [--receipt] [--draw docs/speech-delay.svg]
"""
import argparse
import difflib
import re
import statistics
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
from tests import speech_data  # noqa: E402
from tools.receipt import Receipt  # noqa: E402

POLICIES = {"alignatt": "#0b6e99", "local_agreement": "#b5482a"}
WIDTH, HEIGHT, LEFT, TOP, MOST = 430, 250, 40, 34, 4.0  # of a panel; seconds of its axis


def plain(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


def sound():
    from vivace import audio

    gap = np.zeros(12800, np.float32)
    return np.concatenate([gap, *(p for raw, _ in speech_data.librivox().values() for p in (audio.read(raw)[0], gap))])


def stable_words(heard) -> list[tuple[str, float]]:
    """(word, when its last letter was stable)."""
    text, when = "".join(h.stable for h in heard), [h.at for h in heard for _ in h.stable]
    return [(plain(m.group()), when[m.end() - 1]) for m in re.finditer(r"\S+", text) if plain(m.group())]


def delays(model, policy: str, step: float) -> tuple[list[tuple[float, float]], float]:
    """(when each word ends, seconds until it was stable) of the words that both hear, and the share of the others."""
    x = sound()
    whole = [w for w in model.transcribe(x, language="en", words=True, temperature=0.0).words if plain(w.text)]
    with model.stream_audio(policy=policy, step=step, language="en") as stream:
        words = stable_words(stream.push(x) + stream.finish())
    same = difflib.SequenceMatcher(None, [plain(w.text) for w in whole], [w for w, _ in words], autojunk=False).get_matching_blocks()
    pairs = [(whole[m.a + i].end, words[m.b + i][1] - whole[m.a + i].end) for m in same for i in range(m.size)]
    return pairs, 1 - len(pairs) / max(len(whole), len(words))


def panel(title: str, found: dict, left: float) -> list[str]:
    wide, high, end = WIDTH - LEFT - 12, HEIGHT - TOP - 50, max(t for pairs, _ in found.values() for t, _ in pairs)
    at_x, at_y = (lambda t: left + LEFT + wide * t / end), (lambda d: TOP + high * (1 - min(max(d, 0), MOST) / MOST))
    out = [f'<text x="{left + LEFT}" y="18" font-weight="bold">{title}</text>']
    for y in range(int(MOST) + 1):
        out.append(f'<path d="M{left + LEFT} {at_y(y):.1f}H{left + LEFT + wide}" stroke="#d5d5d5"/><text x="{left + LEFT - 6}" y="{at_y(y) + 4:.1f}" text-anchor="end">{y}</text>')
    for x in range(0, int(end) + 1, 5):
        out.append(f'<text x="{at_x(x):.1f}" y="{TOP + high + 14:.1f}" text-anchor="middle">{x}</text>')
    for i, (policy, (pairs, _)) in enumerate(found.items()):
        mean = statistics.mean(d for _, d in pairs)
        out += [f'<circle cx="{at_x(t):.1f}" cy="{at_y(d):.1f}" r="2.5" fill="{POLICIES[policy]}" fill-opacity="0.7"><title>{d:.2f} s</title></circle>' for t, d in pairs]
        out.append(f'<path d="M{left + LEFT} {at_y(mean):.1f}H{left + LEFT + wide}" stroke="{POLICIES[policy]}" stroke-dasharray="5 4"/>')
        out.append(f'<text x="{left + LEFT}" y="{TOP + high + 30 + 14 * i}" fill="{POLICIES[policy]}">{policy}: mean {mean:.2f} s</text>')
    return out


def main() -> None:
    import vivace

    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--models", nargs="+", default=["whisper-tiny.en", "whisper-base"])
    p.add_argument("--steps", nargs="+", type=float, default=[0.5, 1.0])
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--receipt", action="store_true")
    p.add_argument("--draw", type=Path)
    args = p.parse_args()
    r = Receipt("speech_delay", chip="cpu", command="python bench/bench_stream.py --receipt", sources=["bench/bench_stream.py", "python/vivace/speech/*.py", "vivace/models/whisper/*.cc"])
    panels = []
    for name in args.models:
        with vivace.load_model(speech_data.weights(name), device="cpu", threads=args.threads) as model:
            for step in args.steps:
                found = {policy: delays(model, policy, step) for policy in POLICIES}
                for policy, (pairs, other) in found.items():
                    d = sorted(v for _, v in pairs)
                    at = lambda q: d[min(len(d) - 1, int(q * len(d)))]  # noqa: E731
                    note = f"mean {statistics.mean(d):.2f} s, p95 {at(0.95):.2f} s, first word {pairs[0][1]:.2f} s after its end; {other:.1%} of the words are others than those of the whole file; computing counts as no time"
                    r.row(op="stream", case=f"model={name},policy={policy},step={step:g}", dtype="f32", p50_us=at(0.5) * 1e6, p99_us=at(0.99) * 1e6, n=len(d), note=note)
                    print(name, policy, step, note, flush=True)
                if step == args.steps[0]:
                    panels.append((f"{name}, an update each {step:g} s: seconds of delay by time", found))
    if args.draw:
        body = [line for i, (title, found) in enumerate(panels) for line in panel(title, found, i * WIDTH)]
        size = f'width="{len(panels) * WIDTH}" height="{HEIGHT}" viewBox="0 0 {len(panels) * WIDTH} {HEIGHT}"'
        args.draw.write_text("\n".join([f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif" font-size="11">', '<rect width="100%" height="100%" fill="#fff"/>', *body, "</svg>", ""]))
    if args.receipt:
        print(r.write("bench"))


if __name__ == "__main__":
    main()
