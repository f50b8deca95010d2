"""What must hold of a Whisper, its windows and what is asked of them."""
import numpy as np
from ml_dtypes import float8_e4m3fn

from tests.random_models.text_checks import Wrong, error
from tests.random_models.whisper import EOT, config, samples, write
from tests.reference.policy_numpy import Rounded
from tests.reference.whisper_numpy import Whisper, peak_of
from vivace import _core
from vivace.errors import UnsupportedError

F32 = 5e-6     # relative error of f32, of all places of the windows or of all rows of the texts; seen 7e-7 on the CPU, whose exponentials are nearer than a GPU's
PEAK = 1e-5    # of a sound's largest logarithm, as tests/test_audio.py holds single frames
NARROW = 1.3   # times what float64 makes of the plan's roundings; seen 0.8 to 1.03
STATIC = 1.6   # the same of a scale that all rows of a product share, where that is of the sounds and not of this text; seen 0.8 to 1.4
ROOM = 2.0     # of calibrated scales: the sounds are heard from their beginning for them, and another text is said
LONG = 65      # tokens: a step of 64 and one of one, which one launch can be


class Half(Rounded):
    """f16 between ops."""

    def value(self, x):
        grid = self._grid()
        return (np.asarray(x, np.float32) * grid).astype(np.float16).astype(np.float64) / np.float64(grid)

    def in_expert(self):
        return self


class Static(Rounded):
    """Rows that enter a product have one scale, with ROOM above the largest."""

    def enters(self, x):
        scale = np.float32(ROOM * max(np.abs(x).max(), 1e-30) / 448) * self._grid()
        return (np.asarray(x, np.float32) / scale).astype(float8_e4m3fn).astype(np.float64) * np.float64(scale)


# (of text, of windows): "w8a16" leaves windows in bf16.
ARITHMETIC = {"bf16": (Rounded(), None), "f16": (Half(), None), "w8a16": (Rounded(True, entering=False), Rounded()), "fp8": (Rounded(True), None), "fp8_static": (Static(True), None)}


def load(case, folder, device, **changes):
    return _core.load_speech(str(folder), **dict(device=device, precision=case["precision"], threads=1 if device == "cpu" else 0, windows=case["windows"], rows=case["rows"], decode_layers="off") | changes)


def static(case, folder, device):
    """What load() takes besides in "fp8_static": scales of all sounds, as 16 bits see them."""
    if case["precision"] != "fp8_static":
        return {}
    scales = load(case, folder, device, precision="bf16").calibrate([samples(s) for s in case["sounds"]])
    return {"act_scales": [ROOM * s for s in scales]}


def windows_of(model, case):
    return [(x := samples(s), s["first"], s["frames"], model.peak(x)) for s in case["sounds"]]


def lead(model):
    t = model.tokens()
    return [t["sot"], t["first_language"], t["transcribe"], t["no_timestamps"]] if t["multilingual"] else [t["sot"], t["no_timestamps"]]


def asked(model, case):
    out = []
    for q in case["requests"]:
        words = np.random.default_rng(q["seed"]).integers(0, EOT, q["words"]).tolist()
        prompt = lead(model)[:None if not q["timestamps"] else -1] + words
        out.append({"window": q["window"], "prompt": prompt, "suppress": [], "timestamps": q["timestamps"], "most": q["most"], "candidates": q["candidates"], "temperature": q["temperature"], "seed": q["seed"], "logprobs": True})
    return out


def text_of(model, case):
    """A sequence of LONG tokens."""
    first = lead(model)
    return first + np.random.default_rng(case["seed"]).integers(0, EOT, LONG - len(first)).tolist()


def together(model, case, requests):
    """Their answers, as many at a time as the model has rows for."""
    out, some = [], []
    for q in requests:
        if sum(s["candidates"] for s in some) + q["candidates"] > case["rows"]:
            out, some = out + model.decode(some), []
        some.append(q)
    return out + model.decode(some)


def heard(model, windows):
    model.encode(windows)
    return [model.encoded(i) for i in range(len(windows))]


def same(what, got, want):
    for i, (a, b) in enumerate(zip(got, want, strict=True)):
        if a != b:
            off = f"{np.sum(np.frombuffer(a, np.float32) != np.frombuffer(b, np.float32))} values differ" if isinstance(a, bytes) else f"{a} for {b}"
            raise Wrong(what, f"number {i}: {off}")


def rows_of(raw, columns):
    return np.frombuffer(raw, np.float32).reshape(-1, columns).astype(np.float64)


class Reference:
    """What float64 gives, of windows and of a text behind each: of all windows together, since one of few places may be right by luck."""

    def __init__(self, case, weights, windows, ids):
        self.case, self.weights, self.windows, self.ids = case, weights, windows, ids
        self.right = self.of(())
        self.bounds = {"f32": dict.fromkeys(("windows", "text", "last"), F32)}.get(case["precision"]) or self.errors(ARITHMETIC[case["precision"]])
        self.drawn = case["precision"] == "f32"

    def of(self, arithmetic):
        model = Whisper(config(self.case), self.weights, *arithmetic)
        heard = [model.encoded(x, first, frames, peak_of(x, self.case["mels"])) for x, first, frames, _ in self.windows]
        texts = [model.logits(h, self.ids) for h in heard]
        return {"windows": np.concatenate(heard), "text": np.concatenate(texts), "last": np.stack([t[-1] for t in texts])}

    def errors(self, arithmetic):
        times = STATIC if self.case["precision"] == "fp8_static" else NARROW
        return {k: times * error(v, self.right[k]) for k, v in self.of(arithmetic).items()}

    def widen(self):
        """To what eight draws of the plan's roundings err by: of a few columns one rounding says little."""
        for i in range(8):
            for k, v in self.errors([a and a.by(np.random.default_rng(i)) for a in ARITHMETIC[self.case["precision"]]]).items():
                self.bounds[k] = max(self.bounds[k], v)
        self.drawn = True

    def hold(self, what, of, got):
        far = error(np.concatenate(got), self.right[of])
        if not (self.drawn or far <= self.bounds[of]):
            self.widen()
        if not far <= self.bounds[of]:
            raise Wrong(f"reference of {what}", f"errs by {far:.2e}, bound {self.bounds[of]:.2e}")
        return {what: far / self.bounds[of]}


def held_to_reference(case, weights, windows, ids, encoded, texts):
    """`texts`: name -> logits of each window; of one launch the last row alone is its own. How near the bounds came."""
    for x, _, _, peak in windows:
        if not abs(peak - (own := peak_of(x, case["mels"]))) <= PEAK * max(1, abs(own)):
            raise Wrong("reference of peaks", f"{peak} for {own}")
    right = Reference(case, weights, windows, ids)
    worst = right.hold("windows", "windows", [rows_of(e, case["heads"] * case["dim"]) for e in encoded])
    for what, logits in texts.items():
        rows = [rows_of(l, case["vocab"]) for l in logits]
        worst |= right.hold(what, "text", rows) if what == "text" else right.hold(what, "last", [r[-1:] for r in rows])
    return worst


def check(case, folder, device="cpu"):
    """As text_checks.check."""
    weights, own = write(case, folder), static(case, folder, device)
    model = load(case, folder, device, **own)
    windows, requests, ids = windows_of(model, case), asked(model, case), text_of(model, case)
    encoded = heard(model, windows)
    alone = [model.decode([q])[0] for q in requests]
    texts = {"text": [model.logits(i, ids) for i in range(len(windows))]}
    for (tokens, *_), q in zip(alone, requests):
        if len(tokens) > q["most"] or not all(0 <= t < case["vocab"] for t in tokens):
            raise Wrong("answer", f"{tokens} of at most {q['most']}")
    same("batch", together(model, case, requests), alone)
    same("batch after batch", together(model, case, requests[::-1]), alone[::-1])
    for i, w in enumerate(windows):
        same("window alone", heard(model, [w]), encoded[i:i + 1])
        same("text of a window alone", [model.decode([q | {"window": 0}])[0] for q in requests if q["window"] == i], [a for a, q in zip(alone, requests) if q["window"] == i])
    eager = load(case, folder, device, eager=True, **own)
    same("eager", heard(eager, windows), encoded)
    same("eager text", [*together(eager, case, requests), *(eager.logits(i, ids) for i in range(len(windows)))], [*alone, *texts["text"]])
    if case["rows"] == 1 and case["precision"] == "bf16":
        try:
            one = load(case, folder, device, decode_layers="on")
        except UnsupportedError:  # other heads, or no Hopper
            pass
        else:
            same("one launch's windows", heard(one, windows), encoded)
            texts["one launch"] = [one.logits(i, ids) for i in range(len(windows))]
            told = [one.decode([q])[0] for q in requests]
            same("one launch again", [one.decode([q])[0] for q in requests[::-1]], told[::-1])
    return held_to_reference(case, weights, windows, ids, encoded, texts)
