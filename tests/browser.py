"""A headless Chromium, driven over its DevTools, for tests of pages."""
import base64
import contextlib
import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import pytest


class Page:
    """One tab. `trouble`: what the page's console, its policy and its script complained about; `asked`: what it fetched."""

    def __init__(self, socket):
        self._socket, self._number, self.trouble, self.asked, self._answers = socket, 0, [], [], None
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")

    def do(self, method, **params):
        self._number += 1
        self._socket.send(json.dumps({"id": (mine := self._number), "method": method, "params": params}))
        while True:
            said = json.loads(self._socket.recv(timeout=60))
            if said.get("id") == mine:
                assert "error" not in said, said
                return said["result"]
            self._heard(said)

    def _heard(self, said):
        event, p = said.get("method"), said.get("params", {})
        if event == "Log.entryAdded":
            self.trouble.append(p["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.trouble.append(json.dumps(p["exceptionDetails"]))
        elif event == "Network.requestWillBeSent":
            self.asked.append(p["request"]["url"])
        elif event == "Fetch.requestPaused" and self._answers is not None:
            status, kind, body = self._answers(p["request"])
            self._number += 1
            self._socket.send(json.dumps({"id": self._number, "method": "Fetch.fulfillRequest", "params": {
                "requestId": p["requestId"], "responseCode": status, "responseHeaders": [{"name": "content-type", "value": kind}], "body": base64.b64encode(body).decode()}}))

    def answers(self, pattern, answer):
        """answer(request) -> (status, content type, body) instead of the network."""
        self._answers = answer
        self.do("Fetch.enable", patterns=[{"urlPattern": pattern}])

    def js(self, code):
        got = self.do("Runtime.evaluate", expression=code, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in got, got
        return got["result"].get("value")

    def until(self, code, seconds=60):
        end = time.monotonic() + seconds
        while not (value := self.js(code)):
            assert time.monotonic() < end, (code, self.js("document.body.innerText"), self.trouble)
            time.sleep(0.05)
        return value

    def open(self, url, width=1280, height=800):
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        self.do("Page.navigate", url=url)
        self.until("document.readyState == 'complete'")

    def type(self, text):
        self.do("Input.insertText", text=text)

    def key(self, name, code, modifiers=0):
        text = {"text": "\r"} if name == "Enter" else {}
        self.do("Input.dispatchKeyEvent", type="keyDown", key=name, code=name, windowsVirtualKeyCode=code, modifiers=modifiers, **text)
        self.do("Input.dispatchKeyEvent", type="keyUp", key=name, code=name, windowsVirtualKeyCode=code, modifiers=modifiers)

    def picture(self, file):
        Path(file).write_bytes(base64.b64decode(self.do("Page.captureScreenshot", format="png")["data"]))


@contextlib.contextmanager
def page():
    """Skips where no Chromium is installed, and says so."""
    binary = shutil.which("chromium") or pytest.skip("chromium is not installed (apt-get install chromium)")
    connect = pytest.importorskip("websockets.sync.client").connect
    with tempfile.TemporaryDirectory() as folder:
        process = subprocess.Popen([binary, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={folder}", "about:blank"],
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            port = Path(folder, "DevToolsActivePort")
            end = time.monotonic() + 60
            while not (port.exists() and port.read_text().count("\n")):
                assert time.monotonic() < end and process.poll() is None, "chromium did not start"
                time.sleep(0.05)
            number = port.read_text().split()[0]
            import urllib.request

            tabs = json.load(urllib.request.urlopen(f"http://127.0.0.1:{number}/json", timeout=30))
            with connect(next(t for t in tabs if t["type"] == "page")["webSocketDebuggerUrl"], max_size=None) as socket:
                yield Page(socket)
        finally:
            process.terminate()
            process.wait(30)
            time.sleep(0.1)
