"""Manifests in examples/kubernetes: they fit what the server says of itself, and Kubernetes' schemas where kubernetes-validate is installed.

About 3 s."""
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.serving import serve

yaml = pytest.importorskip("yaml")
FOLDER = Path(__file__).parents[1] / "examples/kubernetes"
DOCUMENTS = list(yaml.safe_load_all((FOLDER / "vivace.yaml").read_text()))


def the(kind):
    [found] = [d for d in DOCUMENTS if d["kind"] == kind]
    return found


@pytest.mark.parametrize("kind", ["Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy"])
def test_kubernetes_takes_them(kind):
    validate = pytest.importorskip("kubernetes_validate").validate
    validate(the(kind), "1.31", strict=True)
    broken = {**the(kind), "spec": {**the(kind)["spec"], "podSelectors": 1}}
    with pytest.raises(Exception, match="podSelectors"):
        validate(broken, "1.31", strict=True)


def test_they_fit_each_other_and_the_command_line():
    from vivace.cli import parser

    pod = the("Deployment")["spec"]["template"]
    labels = pod["metadata"]["labels"]
    for selector in (the("Deployment")["spec"]["selector"]["matchLabels"], the("Service")["spec"]["selector"], the("PodDisruptionBudget")["spec"]["selector"]["matchLabels"], the("NetworkPolicy")["spec"]["podSelector"]["matchLabels"]):
        assert selector.items() <= labels.items()
    [container] = pod["spec"]["containers"]
    args = parser().parse_args(container["args"])
    assert args.command == "serve" and pod["spec"]["terminationGracePeriodSeconds"] > args.linger + args.drain + 5 and [p["containerPort"] for p in container["ports"]] == [args.port]
    assert {m["name"] for m in container["volumeMounts"]} == {v["name"] for v in pod["spec"]["volumes"]}
    assert container["livenessProbe"]["httpGet"]["path"] == container["startupProbe"]["httpGet"]["path"] == "/livez"
    assert container["readinessProbe"]["exec"]["command"] == ["vivace-ready"] and "vivace-ready" in (FOLDER / "Containerfile").read_text()
    assert pod["spec"]["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    assert not re.search(r"(?i)(api.?key|token|password):\s*\S{8}", (FOLDER / "vivace.yaml").read_text())


def test_the_probe_asks_with_the_key():
    def ready(url, key):
        return subprocess.run([sys.executable, FOLDER / "vivace-ready"], env={**os.environ, "VIVACE_URL": url, "VIVACE_API_KEY": key}, capture_output=True, timeout=30).returncode

    key = "a-key-of-the-probe"
    with serve(env={**os.environ, "VIVACE_API_KEY": key}) as server:
        assert ready(server.url, key) == 0 and ready(server.url, "another-key") == 1
        assert server.ask("GET", "/livez")[0] == 200
    assert ready(server.url, key) == 1
