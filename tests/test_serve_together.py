"""`vivace serve --policy`: a language model over HTTP and a policy over a websocket, tenants of one scheduler in one process."""
import re
import socket
import time

import numpy as np
import pytest

import vivace
from tests.browser import page
from tests.serving import NAME, SAY, request_bytes, serve
from tests.test_schedule import command
from vivace.demo import reach

POLICY = ("--policy", "tiny-pi05", "--policy-hz", "0.2", "--policy-deadline-ms", "4900", "--policy-worst-ms", "400", "--threads", "2")


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def test_both_are_served():
    port = free_port()
    with serve(*POLICY, "--policy-port", str(port), "--min-share", "0.3") as server:
        frames = {name: np.zeros((224, 224, 3), np.uint8) for name in reach.CAMERAS}
        with vivace.PolicyClient("127.0.0.1", port) as robot:
            actions = robot.infer({"images": frames, "state": np.zeros(3, np.float32), "prompt": "reach the red ball"})["actions"]
        assert np.isfinite(actions).all() and len(actions) > 1
        assert server.chat(max_tokens=4)[0] == 200
        assert server.metric("vivace_sched_calls_total", tenant="policy", **{"class": "guaranteed"}) == 1
        assert server.metric("vivace_sched_calls_total", tenant="smollm2", **{"class": "burstable"}) >= 4
        assert server.metric("vivace_generated_tokens_total") >= 4
        top = command("top").stdout
        assert re.search(r"^policy +guaranteed", top, re.M) and re.search(r"^smollm2 +burstable", top, re.M), top


SHOWN = "(() => { const c = at('line'), d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data, seen = new Set(); for (let i = 0; i < d.length; i += 4) seen.add(d[i] << 16 | d[i + 1] << 8 | d[i + 2]); return [0x3b75af, 0xc03a2b].every(x => seen.has(x)); })()"


def test_the_page_shows_who_had_the_device(tmp_path):
    port = free_port()
    with serve(*POLICY, "--policy-port", str(port)) as server, page() as tab, vivace.PolicyClient("127.0.0.1", port) as robot:
        tab.open(server.url + "/")
        tab.until("!at('sharing').hidden")
        ask = {"images": {name: np.zeros((224, 224, 3), np.uint8) for name in reach.CAMERAS}, "state": np.zeros(3, np.float32), "prompt": "reach the red ball"}
        tab.js("turns.push({role: 'user', content: 'Name a colour.'}); shown(turns[0]); 0")
        busy = socket.create_connection((server.host, server.port))
        busy.sendall(request_bytes({"model": NAME, "messages": SAY, "max_tokens": 900, "min_tokens": 900, "stream": True}))
        for width, height in ((1280, 800), (360, 640)):
            tab.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
            robot.infer(ask)
            tab.until(SHOWN)  # a call and steps within the last two seconds
            assert tab.js("document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight") and tab.js("at('line').getBoundingClientRect().bottom <= at('log').getBoundingClientRect().top")
            tab.picture(tmp_path / f"{width}.png")
        busy.close()
        said = tab.js("at('line').getAttribute('aria-label')")
        assert re.fullmatch(r"The last 2 s\. policy: [\d.]+ % of the time, \d+ calls, \d+ late\. smollm2: [\d.]+ % of the time, \d+ steps", said), said
        tab.js("at('sharing').open = false")
        time.sleep(0.6)
        tab.js("0")
        tab.asked.clear()
        time.sleep(0.6)
        tab.js("0")
        assert not [u for u in tab.asked if u.endswith("tenants")] and not [x for x in tab.trouble if "getImageData" not in x], "nobody looks, nobody asks"
        spans = server.ask("GET", "/v1/tenants")[2]
        assert [t["class"] for t in spans["tenants"]] == ["guaranteed", "burstable"] and {kind for _, kind, _, _ in spans["spans"]} <= {"wait", "call", "step", "stand_back"}


@pytest.mark.parametrize("options, said", [
    (("--policy", "tiny-pi05"), "say with --policy-hz how many calls a second"),
    (("--policy-hz", "5"), "--policy-hz: there is no --policy"),
    (("--min-share", "0.5"), "--min-share: there is no --policy"),
    (("--policy", "tiny-pi05", "--policy-hz", "-1", "--device", "cpu"), "guaranteed: hz: wanted"),
    ((*POLICY, "--min-share", "2", "--device", "cpu", "--policy-port", "0"), "burstable: min_share: wanted a share"),
    (("--policy", "tiny-pi05", "--policy-hz", "5", "--policy-worst-ms", "180", "--policy-port", "0", "--min-share", "0.5", "--device", "cpu", "--threads", "2"), "needs 0.500 of the device's time, 0.070 is left"),
    (("--policy", "/nowhere/policy", "--policy-hz", "1", "--device", "cpu"), "no such file"),
])
def test_what_cannot_be_served(options, said):
    from tests.test_smollm2 import model_path

    got = command("serve", model_path(), "--port", "0", *options)
    assert got.returncode == 1 and said in got.stderr, got.stderr
