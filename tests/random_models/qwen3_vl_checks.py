"""What must hold of a Qwen3-VL and its prompts."""
import json

import numpy as np

from tests.random_models.qwen3_vl import CONTEXT, config, prompt_of, rows_of, write
from tests.random_models.text_checks import ARITHMETIC, F32, LAST, NARROW, PAGE, Wrong, error
from tests.reference.qwen3_vl_numpy import Qwen3Vl
from vivace import _core


def load(case, folder, device, **changes):
    options = dict(device=device, precision=case["precision"], kv_dtype="f32" if case["precision"] == "f32" else "auto", threads=1 if device == "cpu" else 0, context=CONTEXT, max_batch=case["max_batch"],
                   prefill_chunk=case["chunk"], max_image_tokens=case["most"])
    return _core.load_text_model(str(folder), **options | changes)


class Walk:
    """Sequences on their way through steps. An image is put in a place before its first row enters, and may go once its last has."""

    def __init__(self, core, case, which):
        self.core, self.case = core, case
        self.places = json.loads(dict(core.report())["images"])["places"]
        self.rows, self.images = ([f(case, case["requests"][i]) for i in which] for f in (rows_of, lambda c, q: prompt_of(c, q)[1]))
        self.at, self.holds, self.out = [0] * len(which), [None] * self.places, [[] for _ in which]
        for slot in range(len(which)):
            core.start(slot)

    def place(self, slot, image, used):
        """Where the image is or is put; None where every place has one that this step reads. `used`: places of such."""
        if (slot, image) not in self.holds:
            free = [p for p, held in enumerate(self.holds) if p not in used and (held is None or self.over(*held))]
            if not free:
                return None
            pixels = self.images[slot][image]
            self.core.see(free[0], pixels.tobytes(), *pixels.shape[:2])
            self.holds[free[0]] = (slot, image)
        return self.holds.index((slot, image))

    def over(self, slot, image):
        return all(row[1] != image for row in self.rows[slot][self.at[slot]:])

    def step(self, rows, sample):
        """Up to so many rows, of all sequences in turn: a list of slots."""
        step, used, turn, stuck = [], set(), 0, set()
        slots = [s for s in range(len(self.rows)) if self.at[s] < len(self.rows[s])]
        while len(step) < rows and len(stuck) < len(slots):
            slot = slots[turn % len(slots)]
            turn += 1
            if slot in stuck:
                continue
            if self.at[slot] == len(self.rows[slot]):
                stuck.add(slot)
                continue
            token, image, k, *turned = self.rows[slot][self.at[slot]]
            at = -1
            if image >= 0:
                if (place := self.place(slot, image, used)) is None:
                    stuck.add(slot)
                    continue
                used.add(place)
                at = place * self.case["most"] + k
            pos = self.at[slot]
            step.append((token, pos, slot, sample(pos, len(self.rows[slot])), at, *(t - pos for t in turned)))
            self.at[slot] += 1
        # A sequence's rows follow each other.
        step.sort(key=lambda row: row[2])
        self.core.step(step)
        wanted = [row[2] for row in step if row[3]]
        if wanted:
            raw, n, vocab = self.core.logits()
            for slot, logits in zip(wanted, np.frombuffer(raw, np.float32).reshape(n, vocab)):
                self.out[slot].append(logits.copy())

    def answers(self):
        """Logits of every row, in the decode class."""
        while any(at < len(rows) for at, rows in zip(self.at, self.rows)):
            self.step(self.case["max_batch"], lambda pos, n: True)
        return [np.stack(o) for o in self.out]

    def last(self):
        """Logits of the only sequence's last row, in the prefill class; None where that step would be one of answers."""
        while self.at[0] < len(self.rows[0]):
            if self.at[0] + 1 == len(self.rows[0]):
                return None
            self.step(self.case["chunk"], lambda pos, n: pos == n - 1)
        return self.out[0][-1]


def check(case, folder, device="cpu"):
    """As text_checks.check."""
    weights, worst = write(case, folder), {}
    dense, eager = load(case, folder, device), load(case, folder, device, eager=True)
    paged, numbers = load(case, folder, device, num_kv_blocks=2 * case["max_batch"] * CONTEXT // PAGE), range(len(case["requests"]))
    exact, narrow = Qwen3Vl(config(case), weights), case["precision"] != "f32"
    alone = []
    for i in numbers:
        tokens, images = prompt_of(case, case["requests"][i])
        as_floats = [image.astype(np.float64) for image in images]
        want = exact.logits(as_floats, tokens)
        bound = NARROW * error(Qwen3Vl(config(case), weights, ARITHMETIC[case["precision"]]).logits(as_floats, tokens), want) if narrow else F32
        for what, model in (("dense", dense), ("paged", paged)):
            got, = Walk(model, case, [i]).answers()
            far = error(got, want)
            worst[what] = max(worst.get(what, 0), far / bound)
            if not far <= bound:
                raise Wrong(f"reference of {what} answers", f"request {i} of {len(want)} rows errs by {far:.2e}, bound {bound:.2e}")
            if what == "dense":
                alone.append(got)
            if (last := Walk(model, case, [i]).last()) is not None:
                far = np.linalg.norm(last - want[-1]) / np.sqrt(len(last) * np.mean(want ** 2))
                worst[f"{what} prompt"] = max(worst.get(f"{what} prompt", 0), far / (LAST * bound))
                if not far <= LAST * bound:
                    raise Wrong(f"reference of {what} prompts", f"request {i}: the last of {len(want)} rows errs by {far:.2e}, bound {LAST * bound:.2e}")
    for i in numbers:
        got, = Walk(eager, case, [i]).answers()
        if got.tobytes() != alone[i].tobytes():
            raise Wrong("eager", f"request {i}: {np.sum(got != alone[i])} of {got.size} values differ, by {np.abs(got - alone[i]).max():.2e}")
    for some in ([*numbers], [*numbers][::-1]):
        for at in range(0, len(some), case["max_batch"]):
            which = some[at:at + case["max_batch"]]
            for i, got in zip(which, Walk(dense, case, which).answers()):
                if got.tobytes() != alone[i].tobytes():
                    raise Wrong("batch", f"request {i} beside {[k for k in which if k != i]}: {np.sum(got != alone[i])} of {got.size} values differ, by {np.abs(got - alone[i]).max():.2e}")
    return worst
