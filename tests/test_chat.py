"""`vivace chat`: conversations that slide, their files, commands, pipes, and a terminal."""
import io
import json
import os
import pty
import random
import re
import select
import signal
import subprocess
import sys
import time
import types
from contextlib import suppress
from pathlib import Path

import pytest

import vivace
from tests.test_smollm2 import model_path
from vivace import conversation, lines
from vivace.answers import StreamEvent
from vivace.errors import CorruptDataError, InvalidArgumentError, LimitExceededError

MAIN = [sys.executable, "-m", "vivace.cli", "chat"]


# ---- what fits the context ---------------------------------------------------------------------------

class Counting:
    """A model whose next token is the number of tokens so far, and whose prompts have a token a character and one a message."""

    def __init__(self, context, end=None):
        self.context, self.end, self.asked = context, end, []
        self.text = types.SimpleNamespace(template="x", stream=lambda: lambda t: f"{t},", encode=lambda text: [-1])

    def report(self):
        return {"context": self.context}

    def prompt_ids(self, messages):
        return [0] * sum(1 + len(m["content"]) for m in messages)

    def stream(self, ids, *, max_tokens, seed=0):
        assert 1 <= len(ids) <= self.context and 1 <= max_tokens and len(ids) + max_tokens <= self.context + 1, (len(ids), max_tokens, self.context)
        self.asked.append((len(ids), max_tokens))
        made = sum(1 for t in ids if t)

        def chunks():
            for n in range(max_tokens):
                last = made + n + 1 == self.end
                yield StreamEvent("", made + n + 1, 0.0, "stop" if last else "length" if n + 1 == max_tokens else None)
                if last:
                    return

        return _Closing(chunks())


class _Closing:
    def __init__(self, it):
        self._it = it

    def __iter__(self):
        return self._it

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass


def slides(module, seed: int) -> int:
    """A random chat: what holds of every answer. How many slid in the middle."""
    rng = random.Random(seed)
    context = rng.randrange(8, 200)
    chat, slid = module.Conversation(rng.choice([None, "s" * rng.randrange(1, 6)])), 0
    for _ in range(rng.randrange(1, 12)):
        question = "q" * rng.randrange(1, context + 8)
        wanted, model = rng.randrange(1, 2 * context), Counting(context, rng.choice([None, rng.randrange(1, context)]))
        alone = 1 + len(question) + (1 + len(chat.system) if chat.system else 0)
        before = list(chat.turns)
        chat.say(question)
        forgot = []
        try:
            chunks = list(module.reply(model, chat, {"max_tokens": wanted}, forgot=forgot.append))
        except LimitExceededError:
            assert alone > context
            chat.turns = before
            continue
        tokens = [c.token for c in chunks if c.token is not None]
        assert alone <= context and tokens == list(range(1, len(tokens) + 1))
        assert chunks[-1].finish == ("stop" if tokens[-1] == model.end else "length")
        full = alone + len(tokens) == context + 1  # the last turn and its answer fill it
        assert len(tokens) == min(wanted, model.end or wanted) or full, (len(tokens), wanted, model.end)
        assert len(before) - len(chat.turns) + 1 == 2 * sum(forgot) and chat.turns[:-1] == before[2 * sum(forgot):]
        if not forgot:
            assert len(model.asked) == 1
        slid += len(model.asked) > 1
        chat.answered("a" * len(tokens))
    return slid


def test_any_chat_slides():
    assert sum(slides(conversation, seed) for seed in range(400)) > 40


@pytest.mark.parametrize("right,wrong", [
    ("len(ids) + room <= context + 1", "len(ids) + room <= context + 2"), ("del self.turns[:later]", "del self.turns[:1]"),
    ("[*ids, *made]", "ids"), ("del self.turns[:later]", "del self.turns[-1:]"), ("forgotten += 1", "forgotten += 2"), ("context + 1 - len(ids) - len(made)", "context - len(ids) - len(made)"),
])
def test_a_planted_fault_is_seen(right, wrong):
    source = Path(conversation.__file__).read_text()
    assert right in source
    broken = types.ModuleType("broken")
    exec(source.replace(right, wrong), broken.__dict__)
    with pytest.raises((AssertionError, IndexError)):
        for seed in range(400):
            slides(broken, seed)


# ---- turns of several lines --------------------------------------------------------------------------

@pytest.mark.parametrize("text,turns", [
    ("a\nb\n", ["a", "b"]), ("a\\\nb\\\n\nc", ["a\nb\n", "c"]), ('"""\na\n\n/b\n"""\nc\n', ["a\n\n/b", "c"]), ("a\\", ["a"]), ('a """ b\n', ['a """ b']), ("\r\n", [""]), ("", []),
])
def test_turns(text, turns):
    source, got = lines.Piped(io.StringIO(text, newline="")), []
    with pytest.raises(EOFError):
        while True:
            got.append(source.turn())
    assert got == turns


def test_turns_that_are_none(monkeypatch):
    with pytest.raises(InvalidArgumentError, match="at its end"):
        lines.Piped(io.StringIO('"""\na\n')).turn()
    monkeypatch.setattr(lines, "MAX_CHARS", 10)
    assert lines.Piped(io.StringIO("a" * 10 + "\n")).turn() == "a" * 10
    with pytest.raises(LimitExceededError, match="more than 10 characters"):
        lines.Piped(io.StringIO("a" * 11 + "\n")).turn()
    with pytest.raises(LimitExceededError, match="more than 10 characters"):
        lines.Piped(io.StringIO('"""\naaaa\nbbbb\ncccc\n"""\n')).turn()


# ---- its file ----------------------------------------------------------------------------------------

GOOD = {"form": conversation.FORM, "system": None, "turns": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "params": {"temperature": 0.5}}


def test_a_file_there_and_back(tmp_path):
    chat, other = conversation.Conversation("be brief"), conversation.Conversation()
    chat.say("né\n\u2028")
    chat.answered("")
    chat.save(str(tmp_path / "c"), {"seed": 3})
    assert other.load(str(tmp_path / "c")) == {"seed": 3} and other.messages() == chat.messages()


@pytest.mark.parametrize("change,said", [
    ({"form": "vivace chat 2"}, "form 'vivace chat 1'"), ({"form": "\x1b[2J"}, r"\\x1b\[2J"), ({"system": 3}, "system \\(a text or null\\)"), ({"turns": {}}, "turns \\(a list\\)"), ({"params": []}, "params \\(an object\\)"),
    ({"turns": GOOD["turns"][:1]}, "the last one has no answer"), ({"turns": GOOD["turns"][::-1]}, r"turns\[0\]: wanted role 'user'"), ({"turns": [GOOD["turns"][0], {"role": "assistant"}]}, r"turns\[1\]"),
    ({"turns": [{"role": "user", "content": "a", "x": 1}]}, r"turns\[0\]"), ({"turns": [3]}, r"turns\[0\]"),
])
def test_files_that_are_none(tmp_path, change, said):
    (tmp_path / "c").write_text(json.dumps(GOOD | change))
    chat = conversation.Conversation("kept")
    with pytest.raises(CorruptDataError, match=said):
        chat.load(str(tmp_path / "c"))
    assert chat.messages() == [{"role": "system", "content": "kept"}]
    (tmp_path / "c").write_bytes(b"{\xff")
    with pytest.raises(CorruptDataError):
        chat.load(str(tmp_path / "c"))


# ---- the command -------------------------------------------------------------------------------------

def piped(text, *options, **environment):
    done = subprocess.run([*MAIN, model_path(), "--device", "cpu", "--max-tokens", "8", *options], input=text, capture_output=True, timeout=120, env={**os.environ, **environment})
    assert b"Traceback" not in done.stderr, done.stderr
    return done


def test_a_turn_computes_its_own_words(monkeypatch):
    """The prompt of a turn begins with the very tokens of the one before, which are found computed."""
    with vivace.load_model("smollm2-135m-instruct", device="cpu", context=512) as model:
        chat, seen, real = conversation.Conversation("Be brief."), [], model.stream

        def stream(ids, **options):
            made = real(ids, **options)
            seen.append((ids, made))
            return made
        monkeypatch.setattr(model, "stream", stream)
        for question in ("Name a colour.", "Another one?", "And a fruit?"):
            chat.say(question)
            chunks = list(conversation.reply(model, chat, {"max_tokens": 12, "temperature": 1.2, "seed": 3}, forgot=None))
            chat.answered("".join(c.text for c in chunks))
            tokens = [c.token for c in chunks if c.token is not None]
            if len(seen) > 1:
                before, now = [*seen[-2][0], *drawn], seen[-1][0]
                assert now[:len(before)] == before and len(before) - 9 <= seen[-1][1].cache()[0] < len(now)
            drawn = tokens


def test_a_chat_through_pipes(tmp_path):
    file = tmp_path / "c.json"
    said = ["Name a colour.", "/stats", "/params temperature 0.5", "/params top_q 1", "/params seed -1", "/params seed x", "/retry", "/retry x", f"/save {file}", "/save", "/clear", "/stats", f"/load {file}", "/nonsense",
            "/load no-such-file", "//etc is a folder.", "/system Be brief.", "caf\udce9", "/params temperature default", "/help", "/params enable_thinking true", "Now think.", "/quit", "never read"]
    done = piped("\n".join(said).encode("utf-8", "surrogateescape"), "--context", "160", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = ["error" if "error" in r else r.get("command", "turn") for r in rows]
    assert kinds == ["turn", "stats", "params", "error", "error", "error", "turn", "retry", "error", "save", "error", "clear", "stats", "load", "error", "error", "turn", "system", "error", "params", "help", "params", "error"], kinds
    assert done.returncode == 0 and rows[1]["tokens"] == rows[0]["tokens"] and rows[1]["context_used"] > rows[0]["tokens"] and rows[12]["context_used"] == 0
    assert rows[2]["params"] == {"max_tokens": 8, "temperature": 0.5} and rows[13]["turns"] == 1 and rows[17]["system"] == "Be brief." and "temperature" not in rows[19]["params"]
    kept = json.loads(file.read_text())
    assert kept["params"]["seed"] == 1 and [t["content"] for t in kept["turns"]] == ["Name a colour.", rows[6]["text"]] and rows[7]["instead_of"] == rows[0]["text"]
    assert [r["error"]["code"] for r in rows if "error" in r] == ["InvalidArgument"] * 6 + ["NotFound"] + ["InvalidArgument"] * 2


def test_turns_are_those_of_the_model():
    """The second turn's answer is the one that the model gives to all messages."""
    done = piped(b"Name a colour.\nName another.\n", "--system", "Be brief.", "--json")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    with vivace.load_model(model_path(), device="cpu") as model:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}, {"role": "assistant", "content": rows[0]["text"]}, {"role": "user", "content": "Name another."}]
        answer = model.chat(messages, max_tokens=8)
        assert answer.text == rows[1]["text"] and answer.tokens == model.generate(messages, max_tokens=8).tokens
        with pytest.raises(InvalidArgumentError, match="chat: messages: wanted a list of messages"):
            model.chat("Name a colour.")
        # An answer longer than the context: it goes on past what was forgotten.
    with vivace.load_model(model_path(), device="cpu", context=120) as model:
        chat, forgot = conversation.Conversation(), []
        chat.turns = [{"role": "user", "content": "Hello."}, {"role": "assistant", "content": "Hello. " * 8}, {"role": "user", "content": "Count to a hundred."}]
        made = [c.token for c in conversation.reply(model, chat, {"max_tokens": 80, "repetition_penalty": 1.3}, forgot=forgot.append) if c.token is not None]
        assert sum(forgot) == 1 and len(made) > 120 - 86, (forgot, len(made))


def test_a_status_says_that_a_turn_was_refused():
    done = piped(b"/nonsense\n")
    assert done.returncode == 1 and done.stderr.startswith(b"error[InvalidArgument]: /nonsense") and done.stdout == b""


def test_ctrl_c_stops_the_answer_and_not_the_chat(tmp_path):
    """At a terminal of its own: editing, history, Alt-Enter, Ctrl-C in an answer and at the prompt, Ctrl-D."""
    pytest.importorskip("prompt_toolkit")
    model = model_path()
    child, fd = pty.fork()
    if child == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # a background job's children are born with it ignored
        os.environ |= {"TERM": "xterm", "VIVACE_CACHE": str(tmp_path), "PROMPT_TOOLKIT_NO_CPR": "1"}
        os.execv(sys.executable, [*MAIN, model, "--device", "cpu", "--threads", "1", "--max-tokens", "400"])
    seen = b""

    def until(pattern, seconds=60):
        nonlocal seen
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, seen, re.S)):
            assert time.monotonic() < end, (pattern, seen)
            if select.select([fd], [], [], 0.2)[0]:
                seen += os.read(fd, 65536)
        seen = seen[found.end():]
        return found.group()

    def keys(text):
        os.write(fd, text.encode())

    try:
        ready = rb"\x1b\[\?2004h.*?>"  # line editing has begun
        until(rb"/help says.*?" + ready)
        keys("/params seed 77\x7f\r")  # a key too many, taken back
        until(rb"seed: 7\r.*?" + ready)
        for _ in range(8):  # on a busy machine an answer may be over before the signal comes: then another is asked for
            keys("Count from one to\x1b\rtwo hundred.\r")
            until(rb"\x1b\[\?2004l.{60}")
            os.kill(child, signal.SIGINT)
            if b"cancelled" in until(rb"finish: (cancelled|stop|length).*?" + ready):
                break
        else:
            pytest.fail("no answer was stopped")
        keys("half a line\x03")
        until(rb"Ctrl-D or /quit ends.*?" + ready)
        keys("\x1b[A" * 3 + "\r")  # past the two lines of the last turn in the history, to the one before
        until(rb"seed: 7\r.*?" + ready)
        keys("/stats\r")
        until(rb"1 answers, \d+ tokens.*?" + ready)
        keys("\x04")
        end, done = time.monotonic() + 60, 0
        while not done and time.monotonic() < end:
            done, status = os.waitpid(child, os.WNOHANG)
            with suppress(OSError):  # its end of the terminal is closed
                if select.select([fd], [], [], 0.1)[0]:
                    seen += os.read(fd, 65536)
            time.sleep(0.02)
        assert done and os.waitstatus_to_exitcode(status) == 0, seen
    finally:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.close(fd)
    kept = tmp_path / "chat_history"
    assert kept.stat().st_mode & 0o777 == 0o600 and "+Count from one to\n+two hundred." in kept.read_text()


def test_a_terminal_without_prompt_toolkit(monkeypatch):
    monkeypatch.setitem(sys.modules, "prompt_toolkit", None)
    with pytest.raises(vivace.UnsupportedError, match=r"pip install 'vivace\[chat\]', or take --plain"):
        lines.Terminal("> ", [], None)


def test_a_history_that_cannot_be_kept(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "c"))
    (tmp_path / "other").mkdir()
    (tmp_path / "c").symlink_to(tmp_path / "other")
    assert lines.history_file() is None and "is not kept" in capsys.readouterr().err
    monkeypatch.setenv("VIVACE_CACHE", str(tmp_path / "d"))
    (tmp_path / "d").mkdir(mode=0o700)
    (tmp_path / "d/chat_history").symlink_to(tmp_path / "target")
    assert lines.history_file() is None and not (tmp_path / "target").exists()
