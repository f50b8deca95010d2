"""Which kernels a case of an op's table runs on the chip that receipts are from: known without a GPU."""
from functools import lru_cache

import vivace
from tests.op_data import LAYOUTS, reference
from tests.tactics import arguments
from tools import fingerprint
from tools.kernel_code import ARCH
from tools.receipt import ROOT
from vivace import _core

_CAPABILITY = int("".join(c for c in ARCH if c.isdigit()))


@lru_cache(maxsize=None)
def _table(op):
    return fingerprint.table(ROOT)["ops"].get(op, {"kernels": {}})["kernels"]


def expressions(op, case) -> set:
    """The kernels that the case's layouts pick."""
    found = set()
    for layout in LAYOUTS:
        try:
            given = arguments(op, case, layout)
            found.add(given and _core.picked_kernel(op, _CAPABILITY, **given))
        except (vivace.Error, ValueError):
            continue  # this layout makes no call
    return found - {None}


def of_cases(op) -> list:
    """The kernels that the op's cases pick, sorted: some are compiled only when a call first needs them."""
    return sorted(set().union(*(expressions(op, case) for case in reference(op).CASES))) if reference(op) else []


def fingerprints(op, case) -> str | None:
    """Those of the kernels that the case picks, joined by "+"; None where the table of kernels does not say."""
    found = {_table(op).get(fingerprint.short(e)[:8]) for e in expressions(op, case)}
    return "+".join(sorted(found)) if found and None not in found else None
