"""The routes as OpenAPI says them, and what schemathesis makes of that: requests that fit and that do not, of which none may be an error of the server's
own. Skipped where schemathesis is not installed (vivace[judges]).

About 15 s."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import NAME, serve
from vivace.server.app import ROUTES

CASES, SECONDS = int(os.environ.get("VV_JUDGE_CASES", "2")), 600


@pytest.fixture(scope="module")
def server():
    with serve("--context", "64", "--max-batch", "4") as s:
        yield s


def test_the_document_names_every_route(server):
    status, _, said = server.ask("GET", "/openapi.json")
    assert status == 200 and said["openapi"].startswith("3.1")
    listed = {(m.upper(), p) for p, methods in said["paths"].items() for m in methods}
    assert listed == {(m, p.replace(":path", "")) for m, p, _ in ROUTES}
    chat = said["components"]["schemas"]["Chat"]
    assert chat["properties"]["model"]["enum"] == [NAME] and set(chat["required"]) == {"model", "messages"} and chat["additionalProperties"] is False
    refs = set()

    def walk(value):
        if isinstance(value, dict):
            refs.update(v for k, v in value.items() if k == "$ref")
            [walk(v) for v in value.values()]
        elif isinstance(value, list):
            [walk(v) for v in value]
    walk(said)
    assert refs and all(r.removeprefix("#/components/schemas/") in said["components"]["schemas"] for r in refs)
    ids = [o["operationId"] for methods in said["paths"].values() for o in methods.values()]
    assert len(set(ids)) == len(ids)


def test_schemathesis(server, tmp_path):
    pytest.importorskip("schemathesis")
    (tmp_path / "openapi.json").write_text(json.dumps(server.ask("GET", "/openapi.json")[2]))
    done = subprocess.run([Path(sys.executable).with_name("schemathesis"), "run", str(tmp_path / "openapi.json"), "--url", server.url, "--phases", "fuzzing", "--max-examples", str(CASES), "--seed", "1",
                           "--checks", "not_a_server_error,status_code_conformance", "--request-timeout", "60", "--suppress-health-check", "all", "--generation-deterministic", "--no-color"],
                          capture_output=True, text=True, timeout=SECONDS, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
    server.until_idle()
    assert server.chat(max_tokens=2)[0] == 200
