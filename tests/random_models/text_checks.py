"""What must hold of a language model and its requests."""
import numpy as np

from tests.random_models.text import EXPERTS, HYBRIDS, PAGE, CONTEXT, add_input_scales, ids_of, write, config
from tests.reference.decoder_numpy import Decoder, Summed
from tests.reference.policy_numpy import Rounded
from vivace import _core

DEFAULTS = dict(temperature=0.0, top_k=0, top_p=1.0, min_p=0.0, repetition=1.0, presence=0.0, frequency=0.0, seed=0, stop=[])
TIE = 1e-4         # router logits nearer than this may choose other experts
F32 = 3e-6         # relative error of all rows in f32, of sums of some hundred terms in two to four layers; seen 5e-7
ORDERS = 3.0       # times what float32 sums in drawn orders err by, where a row hangs on a cancelled sum; seen 0.2 to 1.3
NARROW = 1.3       # times what float64 makes of the plan's roundings; seen 0.99 to 1.04
LAST = 4.0         # the largest of a row's logits beside the mean of all rows; seen 2


class Wrong(Exception):
    """property: what does not hold; then how."""


class Eights(Rounded):
    """Weights of 8 bits, activations of 16."""

    def enters(self, x):
        return x


ARITHMETIC = {"bf16": Rounded(), "native": Rounded(), "w8a16": Eights(eight=True), "fp8": Rounded(eight=True), "fp8_static": Rounded(eight=True)}
STATIC = 1.5       # the same of a scale a place, which fits no single row; as in test_hybrid_fp8.py


def load(case, folder, device, **changes):
    need = max(-(-(q["prompt"] + q["tokens"]) // PAGE) for q in case["requests"])
    options = dict(device=device, precision=case["precision"], kv_dtype=case["kv_dtype"], threads=1 if device == "cpu" else 0, context=CONTEXT, max_batch=case["max_batch"], prefill_chunk=case["chunk"],
                   max_in_flight_steps=case["ahead"], num_kv_blocks=max(need, 2 * case["max_batch"]) if case["paged"] else 0)
    return _core.load_text_model(str(folder), **options | changes)


def scales(case, folder, device, prompts):
    """Options of a calibrated plan. Of some cases the checkpoint has the scales then, as fp8 folders do."""
    if case["precision"] != "fp8_static":
        return {}
    found = load(case | {"precision": "bf16", "kv_dtype": "auto"}, folder, device).calibrate(prompts, 100.0)
    if not case.get("input_scales"):
        return {"act_scales": found}
    add_input_scales(folder, found)
    return {}


def serve(core, case, which):
    """{request: (tokens, logprobs, finish)} of the requests `which`, in this order, as they arrive and are cancelled."""
    batcher, got, number, waiting, step = _core.Batcher(core), {}, {}, [(case["requests"][i].get("arrives", 0), i) for i in which], 0
    while waiting or not batcher.idle():
        idle = batcher.idle()
        for at, i in list(waiting):
            if at <= step or idle:
                q = case["requests"][i]
                number[batcher.submit(**DEFAULTS | q["sampling"], prompt=ids_of(case, q), max_tokens=q["tokens"])] = i
                waiting.remove((at, i))
                got[i] = ([], [], None)
                if idle:
                    break
        for n, token, logprob, finish in batcher.step():
            if n not in number:
                raise Wrong("events", f"token {token} is of no request: {n}")
            i = number[n]
            if got[i][2] is not None:
                raise Wrong("events", f"request {i} has ended with {got[i][2]} and brings {token}")
            got[i] = (got[i][0] + [token] * (token is not None), got[i][1] + [logprob] * (token is not None), finish or None)
            if finish is None and len(got[i][0]) == case["requests"][i].get("cancelled"):
                batcher.cancel(n)
        step += 1
        if step > 20000:
            raise Wrong("ends", "20000 steps, and not over")
    return got


def same(what, case, got, alone):
    """Of those that were not cancelled all, of the others a beginning."""
    off = []
    for i, (tokens, logprobs, finish) in got.items():
        want = alone[i]
        n = len(tokens) if finish == "cancelled" else None
        if tokens != want[0][:n] or logprobs != want[1][:n] or (n is None and finish != want[2]):
            at = next((k for k, pair in enumerate(zip(zip(tokens, logprobs), zip(*want[:2]))) if pair[0] != pair[1]), min(len(tokens), len(want[0])))
            off.append(f"request {i} from token {at}: {tokens[at:at + 3]} {logprobs[at:at + 1]}, alone {want[0][at:at + 3]} {want[1][at:at + 1]}")
    if off:
        raise Wrong(what, f"{len(off)} of {len(got)} answers differ; {off[0]}")


def logits_of(core, case, ids, slot=0, prompt=False):
    """Of every token in the decode class, or of the last in the prefill class."""
    core.start(slot)
    out, piece = [], case["chunk"] if prompt else case["max_batch"]
    for at in range(0, len(ids), piece):
        rows = [(t, at + i, slot, not prompt or at + i == len(ids) - 1) for i, t in enumerate(ids[at:at + piece])]
        if prompt and all(r[3] for r in rows) and case["family"] not in HYBRIDS:
            rows = [(*rows[0][:3], False), *rows]  # a lone sampled row would be of the decode class: said twice
        core.step(rows)
        if any(r[3] for r in rows):
            raw, n, vocab = core.logits()
            out.append(np.frombuffer(raw, np.float32).reshape(n, vocab).astype(np.float64))
    return np.concatenate(out)


def error(got, want):
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def error_of_last(last, want):
    """Beside the mean of all rows."""
    return float(np.linalg.norm(last - want[-1]) / np.sqrt(len(last) * np.mean(want ** 2)))


class Bounds:
    """Of a sequence's error: of the rows before a near tie, and of the last row beside the mean of all."""

    def __init__(self, case, weights, ids, want, until):
        self.logits = lambda arithmetic: Decoder(config(case), weights, arithmetic).logits(ids)
        self.want, self.until, self.precision, self.drawn = want, until, case["precision"], False
        self.rows, self.last = F32, LAST * F32
        if self.precision != "f32":
            narrow = STATIC if self.precision == "fp8_static" else NARROW
            self.rows, last = (narrow * e for e in self.errors(self.logits(ARITHMETIC[self.precision])))
            self.last = max(LAST * self.rows, last)

    def errors(self, logits):
        return error(logits[:self.until], self.want[:self.until]), error_of_last(logits[-1], self.want)

    def widen(self):
        """To what eight draws of the plan's roundings err by, in f32 of orders of summation. A key or a head's output near zero, by
        whose length it is divided, makes 1e-4 of the last bits of a sum: the same rows in every draw."""
        def one(i):
            rng = np.random.default_rng(i)
            return Summed(rng) if self.precision == "f32" else ARITHMETIC[self.precision].by(rng)

        all_errors = np.array([self.errors(self.logits(one(i))) for i in range(8)])
        rows, last = ORDERS * np.sqrt(np.mean(all_errors ** 2, 0)) if self.precision == "f32" else NARROW * all_errors.max(0)
        self.rows, self.last, self.drawn = max(self.rows, float(rows)), max(self.last, float(last)), True

    def share(self, far, which):
        """How near `far` comes; seldom need draws be made."""
        if not self.drawn and not far <= getattr(self, which):
            self.widen()
        return far / getattr(self, which)


def held_to_reference(case, folder, device, weights, sequences):
    """Logits of whole sequences in both classes, of dense caches and of pages."""
    if case["kv_dtype"] not in ("auto", "f32") or (case["precision"] != "f32" and case["precision"] not in ARITHMETIC) or (case["family"] in EXPERTS and case["precision"] != "f32"):
        return {}
    exact, worst = Decoder(config(case), weights), {}
    own = scales(case, folder, device, sequences)
    models = [(what, load(case, folder, device, num_kv_blocks=pages, **own)) for what, pages in (("dense", 0), ("paged", 2 * CONTEXT // PAGE))]

    def hold(what, far, bounds, which, of):
        share = bounds.share(far, which)
        worst[what] = max(worst.get(what, 0), share)
        if not share <= 1:
            raise Wrong(f"reference of {what}", f"{of} tokens err by {far:.2e}, bound {far / share:.2e}")

    for ids in sequences:
        want = exact.logits(ids)
        until = len(ids) if np.all(exact.closest > TIE) else int(np.argmax(exact.closest <= TIE))
        if until == 0:
            continue
        bounds = Bounds(case, weights, ids, want, until)
        for what, model in models:
            hold(f"{what} answers", error(logits_of(model, case, ids)[:until], want[:until]), bounds, "rows", len(ids))
            if until == len(ids):
                last = logits_of(model, case, ids, slot=case["max_batch"] - 1, prompt=True)[0]
                hold(f"{what} prompts", error_of_last(last, want), bounds, "last", f"the last of {len(ids)}")
    return worst


def check(case, folder, device="cpu"):
    """Raises Wrong, or what load() refuses; else how near the bounds came: name -> share."""
    weights = write(case, folder)
    numbers = list(range(len(case["requests"])))
    own = scales(case, folder, device, [ids_of(case, q) for q in case["requests"]])
    core = load(case, folder, device, **own)
    plain = case | {"requests": [{k: v for k, v in q.items() if k not in ("arrives", "cancelled")} for q in case["requests"]]}
    alone = {}
    for i in numbers:
        alone |= serve(core, plain, [i])
    for i, (tokens, _, finish) in alone.items():
        if finish != "length" or len(tokens) != case["requests"][i]["tokens"] or not all(0 <= t < case["vocab"] for t in tokens):
            raise Wrong("answer", f"request {i} alone: {finish} after {tokens}")
    same("batch", case, serve(core, case, numbers), alone)
    same("batch after batch", case, serve(core, plain, numbers[::-1]), alone)
    same("eager", case, serve(load(case, folder, device, eager=True, **own), case, numbers), alone)
    longest = sorted(numbers, key=lambda i: -len(alone[i][0]) - case["requests"][i]["prompt"])[:2]
    return held_to_reference(case, folder, device, weights, [(ids_of(case, case["requests"][i]) + alone[i][0])[:CONTEXT] for i in longest])
