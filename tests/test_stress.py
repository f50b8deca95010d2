"""tests.stress, 15 s of each kind: no answer shows another's words, nothing hangs, crashes or stays behind."""
import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize("scope,pages", [("threads", 0), ("asyncio", 12), ("mixed", 12)])
def test_storm(scope, pages):
    done = subprocess.run([sys.executable, "-m", "tests.stress", "--seconds", "15", "--scope", scope, "--pages", str(pages)], capture_output=True, text=True, timeout=280,
                          cwd=Path(__file__).parent.parent)
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert rows and all(r["pass"] for r in rows), (rows, done.stderr[-4000:])
    assert next(r["n"] for r in rows if r["case"].endswith("metric=requests")) > 200
