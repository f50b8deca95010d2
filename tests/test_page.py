"""The page of `vivace serve`: its headers, and a Chromium that uses it."""
import base64
import hashlib
import json
import re
from pathlib import Path

import pytest

from tests.browser import page
from tests.serving import serve

KEY = "a-key-of-the-test"
QUESTION = "Name three colours."


@pytest.fixture(scope="module")
def server():
    with serve() as s:
        yield s


@pytest.fixture(scope="module")
def tab():
    with page() as p:
        yield p


def opened(tab, server, **size):
    tab.do("Fetch.disable")
    tab.trouble.clear()
    tab.asked.clear()
    tab.open(server.url + "/", **size)
    return tab


def ask(tab, text):
    tab.js("at('ask').focus()")
    tab.type(text)
    tab.key("Enter", 13)


def last(tab):
    return tab.js("[...document.querySelectorAll('.assistant .text')].at(-1)?.textContent")


def test_headers(server):
    status, headers, html = server.ask("GET", "/")
    policy = dict(p.strip().split(" ", 1) for p in headers["content-security-policy"].split(";"))
    assert status == 200 and headers["content-type"] == "text/html; charset=utf-8" and headers["x-content-type-options"] == "nosniff"
    for tag in ("script", "style"):
        body, = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S)
        assert policy[f"{tag}-src"] == f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
    assert policy["default-src"] == policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'" and policy["connect-src"] == "'self'"
    assert not re.search(r"https?://|//[a-z]|@import|innerHTML|insertAdjacentHTML|document\.write|eval\(|localStorage|sessionStorage|indexedDB|cookie|\son\w+=", html), "no other origin, no markup from text, nothing kept"
    assert server.ask("POST", "/", {})[0] == 405 and server.ask("GET", "/index.html")[0] == 404
    assert server.ask("GET", "/", headers={"host": "evil.example"})[0] == 403


def test_a_chat(server, tab, tmp_path):
    """Streamed text is the API's; Regenerate, Stop and Escape; nothing leaves the server; it fits 1280 and 360 px."""
    t = opened(tab, server)
    t.until("at('model').textContent.includes('context')")
    assert t.js("document.activeElement.id") == "ask"
    whole = server.chat([{"role": "user", "content": QUESTION}], max_tokens=24)[2]
    t.js("at('max_tokens').value = '24'")
    ask(t, QUESTION)
    t.until("at('status').textContent.includes('finish: length')")
    assert last(t) == whole["choices"][0]["message"]["content"]
    status = t.js("at('status').textContent")
    assert re.fullmatch(rf"24 tokens · [\d.]+ tokens/s · first after \d+ ms · {whole['usage']['prompt_tokens']} prompt tokens, \d+ cached · finish: length", status), status
    # A second turn has the first in it; Regenerate answers it again.
    messages = [{"role": "user", "content": QUESTION}, {"role": "assistant", "content": last(t)}, {"role": "user", "content": "Another."}]
    second = server.chat(messages, max_tokens=24)[2]["choices"][0]["message"]["content"]
    ask(t, "Another.")
    t.until("document.querySelectorAll('.assistant').length == 2 && !at('again').disabled")
    assert last(t) == second
    t.js("at('again').click()")
    t.until("running == null && document.querySelectorAll('.assistant').length == 2")
    assert last(t) == second and t.js("turns.length") == 4
    # Escape and the button stop a long answer, and its slot is free.
    for stop in (lambda: t.key("Escape", 27), lambda: t.js("at('stop').click()")):
        t.js("at('max_tokens').value = '600'; at('clear').click()")
        ask(t, "Count from one to three hundred.")
        t.until("at('status').textContent.includes('tokens/s')")
        stop()
        t.until("at('status').textContent.includes('finish: stopped')")
        assert server.until_idle() < 10 and t.js("turns.length") == 2 and not t.js("at('send').disabled")
    for width, height in ((1280, 800), (360, 640)):
        t.do("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        for settings in ("false", "true"):
            t.js(f"at('settings').open = {settings}")
            assert t.js("document.documentElement.scrollWidth <= innerWidth && document.documentElement.scrollHeight <= innerHeight"), (width, settings)
            boxes = t.js("['header', '#log', '#status', '#form'].map(q => { const r = document.querySelector(q).getBoundingClientRect(), c = document.querySelector(q).scrollHeight; return [r.top, q == '#log' ? r.bottom : Math.max(r.bottom, r.top + c - 1)]; })")
            assert all(above[1] <= below[0] + 1 for above, below in zip(boxes, boxes[1:])), (width, settings, boxes)
            t.picture(tmp_path / f"{width}-{settings}.png")
    assert t.trouble == [] and {u.split("/v1/")[0].rstrip("/") for u in t.asked if not u.startswith("data:")} == {server.url}


def test_wrong_numbers_are_told_before_they_are_sent(server, tab):
    t = opened(tab, server)
    t.until("at('model').textContent.includes('context')")
    t.js("at('top_k').value = '1.5'")
    ask(t, "x")
    t.until("at('status').querySelector('.bad')?.textContent.startsWith('top_k: ')")
    assert t.js("turns.length") == 0 and t.js("at('ask').value") == "x", "the question is where it was"
    t.js("at('top_k').value = ''; at('temperature').value = '9'; at('ask').focus()")
    t.key("Enter", 13)
    t.until("at('status').textContent.startsWith('400: temperature: wanted 0.0 to 2.0')")
    assert not t.js("at('send').disabled") and t.js("turns.length") == 0 and t.js("at('ask').value") == "x" and t.trouble[1:] == []  # the browser tells of the 400


def test_a_key_stays_in_memory(tab):
    with serve("--api-key", KEY) as server:
        t = opened(tab, server)
        t.until("at('status').textContent.startsWith('401: ')")
        assert t.js("document.activeElement.id") == "key"
        t.type(KEY)
        t.js("at('key').dispatchEvent(new Event('change'))")
        t.until("at('model').textContent.includes('context')")
        t.js("at('max_tokens').value = '4'")
        ask(t, "Hello.")
        t.until("at('status').textContent.includes('finish')")
        assert t.js("localStorage.length + sessionStorage.length") == 0 and t.js("document.cookie") == "" and all(KEY not in u for u in t.asked)
        t.open(server.url + "/")
        t.until("at('status').textContent.startsWith('401: ')")
        assert t.js("at('key').value") == "" and server.ask("GET", "/v1/models")[0] == 401


def events(*deltas, usage=None, cut=None, error=None):
    rows = [{"choices": [{"index": 0, "delta": d, "finish_reason": None}]} for d in deltas]
    rows += [{"choices": [], "usage": usage}] if usage else []
    rows += [{"error": {"message": error}}] if error else []
    return b": ping\n\n" + b"".join(b"data: %b\n\n" % json.dumps(r).encode() for r in rows) + b"data: [DONE]\n\n"


def test_tool_calls_reasoning_and_text_that_is_markup(server, tab):
    """Against answers made here: calls in pieces, their results sent back, an error in mid-stream, markup as text."""
    t, bodies = opened(tab, server), []
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    replies = [
        events({"reasoning_content": "I "}, {"reasoning_content": "think."}, {"content": evil}, {"tool_calls": [{"index": 0, "id": "c1", "function": {"name": "look", "arguments": "{\"a\""}}]},
               {"tool_calls": [{"index": 0, "function": {"arguments": ": 1}"}}, {"index": 1, "id": "c2", "function": {"name": evil, "arguments": "{}"}}]},
               usage={"prompt_tokens": 9, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}),
        events({"content": "né"}, {"content": "\n\n"}, {"content": "end"}), events({"content": "half"}, error="the model fell over"),
    ]

    def answer(request):
        bodies.append(json.loads(request["postData"]))
        return 200, "text/event-stream", replies[len(bodies) - 1]

    t.answers("*/v1/chat/completions", answer)
    t.until("at('model').textContent.includes('context')")
    t.js("at('tools').value = '[{\"type\": \"function\"}]'; at('system').value = 'Be brief.'")
    ask(t, "go")
    t.until("document.querySelectorAll('.call').length == 2")
    assert last(t) == evil and t.js("document.title") == "Vivace" and t.js("document.querySelectorAll('img').length") == 0
    assert t.js("document.querySelector('.assistant details').textContent") == "ReasoningI think."
    assert t.js("[...document.querySelectorAll('.call')].map(c => [c.querySelector('strong').textContent, c.querySelector('code').textContent])") == [["look", '{"a": 1}'], [evil, "{}"]]
    assert "7 tokens" in t.js("at('status').textContent") and "9 prompt tokens, 5 cached" in t.js("at('status').textContent")
    t.type("seen")  # the first result has the focus
    t.js("[...document.querySelectorAll('button')].find(b => b.textContent == 'Send results').click()")
    t.until("turns.at(-1).content == 'n\\u00e9\\n\\nend'")
    assert bodies[0]["tools"] == [{"type": "function"}] and [m["role"] for m in bodies[1]["messages"]] == ["system", "user", "assistant", "tool", "tool"]
    assert bodies[1]["messages"][2]["tool_calls"][0] == {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"a": 1}'}} and bodies[1]["messages"][3] == {"role": "tool", "tool_call_id": "c1", "content": "seen"}
    ask(t, "again")
    t.until("at('status').textContent == 'the model fell over'")
    assert last(t) == "half" and not t.js("at('send').disabled")
    assert t.trouble == []


def test_a_script_that_is_not_its_own_does_not_run(server, tab):
    """The policy is seen to hold: what the page would run if it let text become markup is refused."""
    t = opened(tab, server)
    t.js("(() => { const s = document.createElement('script'); s.textContent = 'document.title = \"owned\"'; document.body.append(s); })()")
    t.until("true")
    assert t.js("document.title") == "Vivace" and any("Content Security Policy" in x for x in t.trouble)
    t.trouble.clear()


def test_the_wheel_has_it():
    import vivace

    assert (Path(vivace.__file__).parent / "server/page.html").is_file()
