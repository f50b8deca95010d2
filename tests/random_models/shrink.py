"""Makes a failing case small while it fails in the same way."""
import time

import vivace


def outcome(case, device):
    """(property that does not hold, how) or None; what a load refuses is no failure."""
    import tempfile
    from pathlib import Path

    from tests.random_models import groot_checks, policy_checks, qwen3_vl_checks, smolvla_checks, text_checks, whisper_checks

    check = {"text": text_checks, "qwen3_vl": qwen3_vl_checks, "policy": policy_checks, "groot": groot_checks, "smolvla": smolvla_checks, "whisper": whisper_checks}[case["kind"]].check
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(case, Path(folder), device)
        except text_checks.Wrong as e:
            return e.args
    return None


def shrink(case, device, seconds=20.0):
    from tests.random_models import groot, policy, qwen3_vl, smolvla, text, whisper

    simpler, end = {"text": text, "qwen3_vl": qwen3_vl, "policy": policy, "groot": groot, "smolvla": smolvla, "whisper": whisper}[case["kind"]].simpler, time.monotonic() + seconds
    what = outcome(case, device)[0]
    found = True
    while found and time.monotonic() < end:
        found = False
        for candidate in simpler(case):
            if time.monotonic() > end:
                break
            try:
                failed = outcome(candidate, device)
            except vivace.Error:
                continue  # no valid case
            if failed and failed[0] == what:
                case, found = candidate, True
                break
    return case
