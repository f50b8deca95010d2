"""Subjects of commits: imperative, short, figures in the body."""

import re
import subprocess
from pathlib import Path

PURPOSE = "commit subjects: imperative, at most 72 characters, no full stop"

BEFORE = "4d6f37658185"  # the last commit that is older than the rule; with none of it in a clone there is nothing to look at
LONGEST = 72
# Words that end so and are imperative all the same.
_IMPERATIVE = {"bring", "embed", "exceed", "feed", "need", "proceed", "ring", "seed", "shed", "shred", "speed", "spring", "string", "swing", "wed"}
_PLACE = re.compile(r"^[\w./*,{}+ -]{1,40}: ")


def wrong(subject: str) -> str | None:
    """What is wrong with a subject, or None."""
    if len(subject) > LONGEST:
        return f"{len(subject)} characters, at most {LONGEST}"
    if subject.endswith("."):
        return "ends with a full stop"
    words = _PLACE.sub("", subject).split()
    first = words[0].lower() if words else ""
    if re.fullmatch(r"[a-z]+(?:ed|ing)", first) and first not in _IMPERATIVE:
        return f"'{words[0]}' is not imperative"
    return None


def run(root: Path) -> list[str]:
    if not (root / ".git").exists():
        return []
    got = subprocess.run(["git", "-C", str(root), "log", "--no-merges", "--format=%h %s", f"{BEFORE}..HEAD"], capture_output=True, text=True)
    lines = got.stdout.splitlines() if got.returncode == 0 else []
    return [f"commit {commit}: {what}: {subject}" for commit, _, subject in (line.partition(" ") for line in lines) if (what := wrong(subject))]
