"""What a run of the fuzzer has seen of each op: calls, refusals, what is wrong, and whether the generator is blind to anything."""
import re
from collections import Counter
from dataclasses import dataclass, field

from tests.differential.draw import listed
from tests.op_data import OPS, reference

LEAST_SHARE = {False: 0.6, True: 0.15}  # of an op's drawn calls that must run, on the CPU and on a device, which has fewer kernels
LEAST_CALLS = 60    # before anything is said about the share
LEAST_SEEN = 150    # ... and about what was not seen


def facts(op, call):
    """What a call shows of its op: ports there and absent, dtypes, choices, aliases."""
    case, row = call.case, OPS[op]
    for p in row["ports"]:
        name = p["name"]
        if p["optional"]:
            yield f"{name} {'given' if name in case.dtypes else 'absent'}"
        if name in case.dtypes:
            yield f"{name}={case.dtypes[name]}"
        if p["inplace"] and name in call.inplace:
            yield f"{name} in place of {p['inplace']}"
    for a in row["attrs"]:
        if a["kind"] == "choice":
            yield f"{a['name']}={case.attrs.get(a['name'], a['default'])}"
        else:
            yield f"{a['name']} {'set' if a['name'] in case.attrs else 'default'}"


def all_facts(op):
    """Those that a run must have seen."""
    row = OPS[op]
    spec = {p["name"]: p for p in row["ports"]}
    for p in row["ports"]:
        if p["optional"]:
            yield from (f"{p['name']} given", f"{p['name']} absent")
        yield from (f"{p['name']}={t}" for t in listed(spec, p["name"]))
        if p["inplace"]:
            yield f"{p['name']} in place of {p['inplace']}"
    for a in row["attrs"]:
        yield from (f"{a['name']}={c}" for c in a["choices"]) if a["kind"] == "choice" else (f"{a['name']} set", f"{a['name']} default")


@dataclass
class Tally:
    """Of one op."""

    drawn: int = 0
    ran: int = 0
    refused: Counter = field(default_factory=Counter)  # kind and text up to the first number -> calls
    wrong: list = field(default_factory=list)          # (seed, what, line)
    seen: set = field(default_factory=set)
    seconds: float = 0.0

    def add(self, seed, result, seconds):
        self.drawn += 1
        self.seconds += seconds
        if result.refused:
            self.refused[re.sub(r"\d+", "#", result.refused)[:110]] += 1
            return
        self.ran += 1
        self.seen.update(facts(result.call.op, result.call))

    def merge(self, other):
        self.drawn, self.ran, self.seconds = self.drawn + other.drawn, self.ran + other.ran, self.seconds + other.seconds
        self.refused.update(other.refused)
        self.wrong += other.wrong
        self.seen |= other.seen

    def blind(self, op, device=False):
        """What the generator has missed."""
        if self.drawn < LEAST_CALLS:
            return []
        out = []
        if self.ran < LEAST_SHARE[device] * self.drawn:
            out.append(f"{self.ran} of {self.drawn} calls ran, the rest was refused: {self.refused.most_common(2)}")
        if self.ran >= LEAST_SEEN and not device:  # a device refuses what has no kernel
            out += [f"never {f}" for f in all_facts(op) if f not in self.seen and f not in reference(op).DOMAIN.never]
        return out

    def to_json(self):
        return {"drawn": self.drawn, "ran": self.ran, "refused": dict(self.refused), "wrong": self.wrong, "seen": sorted(self.seen), "seconds": self.seconds}

    @staticmethod
    def of_json(j):
        return Tally(j["drawn"], j["ran"], Counter(j["refused"]), [tuple(w) for w in j["wrong"]], set(j["seen"]), j["seconds"])
