"""`vivace chat`: a conversation at a terminal or through pipes."""
from __future__ import annotations

import json
import sys
import time

from vivace import options
from vivace.answers import Answer
from vivace.conversation import Conversation, reply
from vivace.errors import CorruptDataError, Error, InvalidArgumentError, LimitExceededError

PARAMS = {name: options.GENERATE[name] for name in
          ("max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed")} | {"enable_thinking": options.flag}
COMMANDS = {
    "help": ("", "what there is"),
    "system": ("[TEXT]", "the system message: shows it, or sets it; `-` takes it away"),
    "params": ("[NAME VALUE]", f"shows or sets what an answer is drawn with: {', '.join(PARAMS)}; VALUE `default` takes it back"),
    "retry": ("", "another answer to the last question, with the next seed"),
    "clear": ("", "forgets all turns; the system message stays"),
    "save": ("FILE", "writes the conversation as JSON"),
    "load": ("FILE", "goes on with one that was saved"),
    "stats": ("", "tokens, tokens/s and how full the context is"),
    "quit": ("", "ends; Ctrl-D does too"),
}
KEYS = 'Several lines: Alt-Enter, a backslash at a line\'s end, or """ before and after. Ctrl-C stops an answer. A turn that begins with a slash: two of them.'


def show(chunks, *, as_json: bool) -> tuple[Answer, dict]:
    """Prints an answer as it is made, and then what it took. Ctrl-C ends it cleanly: what was said stays."""
    from vivace.cli import peak_rss_mb

    out, start = Answer(), time.perf_counter()
    try:
        for c in chunks:
            out.add(c, time.perf_counter() - start)
            if not as_json:
                print(c.text, end="", flush=True)
    except KeyboardInterrupt:
        out.finish = "cancelled"
    finally:
        chunks.close()
    facts = {"finish": out.finish, "tokens": len(out.tokens),
             "first_token_ms": None if out.first_token_s is None else round(out.first_token_s * 1e3, 1),
             "tokens_per_s": None if out.tokens_per_s is None else round(out.tokens_per_s, 1), "peak_rss_mb": round(peak_rss_mb(), 1)}
    if as_json:
        print(json.dumps({"text": out.text, **facts}), flush=True)
    else:
        if not out.text.endswith("\n"):
            print(flush=True)
        rate = "" if facts["tokens_per_s"] is None else f", {facts['tokens_per_s']} tokens/s"
        first = "" if facts["first_token_ms"] is None else f"first token {facts['first_token_ms']} ms, "
        print(f"[{first}{facts['tokens']} tokens{rate}, peak memory {facts['peak_rss_mb']} MB, finish: {out.finish}]", file=sys.stderr)
    return out, facts


def forgot(turns: int) -> None:
    print(f"[the context is full: {'the oldest turn is' if turns == 1 else f'the {turns} oldest turns are'} forgotten]", file=sys.stderr)


class Quit(Exception):
    pass


class Repl:
    """One conversation with one model, and what its commands do. What is said goes to standard output, what is said about it to
    standard error; with as_json each turn and command is one JSON object on standard output."""

    def __init__(self, model, *, system: str | None, params: dict, as_json: bool):
        self.model, self.as_json = model, as_json
        self.chat, self.params, self.context = Conversation(system), params, model.report()["context"]
        self.answers = self.tokens = 0
        self.seconds = 0.0  # between first and last tokens
        self.last: dict | None = None
        self.failed = False  # some turn or command was refused

    def run(self, source) -> int:
        """Until the source ends or /quit."""
        while True:
            try:
                text = source.turn()
                self.take(text)
            except EOFError:
                return 1 if self.failed else 0
            except Quit:
                return 0
            except KeyboardInterrupt:
                if not sys.stdin.isatty():
                    raise
                print("[Ctrl-D or /quit ends the chat]", file=sys.stderr)  # at the prompt: the line is dropped
            except (Error, OSError, MemoryError) as e:
                self._refused(e)

    def _refused(self, e: Exception) -> None:
        from vivace.cli import described, report

        self.failed = True
        report(*described(e), as_json=self.as_json)

    def take(self, text: str) -> None:
        if text.startswith("/") and not text.startswith("//"):
            return self.command(*text[1:].partition(" ")[::2])
        if text.strip():
            self.ask(text.removeprefix("/") if text.startswith("//") else text)

    # ---- turns ------------------------------------------------------------------------------------

    def ask(self, text: str) -> None:
        self.chat.say(text)
        self._answer()

    def _answer(self) -> None:
        """Of a turn that is refused, or stopped before its first token, nothing stays; of an answer that Ctrl-C stopped, what was said."""
        kept, answer = list(self.chat.turns), Answer()
        try:
            answer, facts = show(reply(self.model, self.chat, self.params, forgot=forgot), as_json=self.as_json)
        finally:
            if answer.tokens:
                self.chat.answered(answer.text)
            else:
                self.chat.turns = kept[:-1]
        self.answers += 1
        self.tokens += len(answer.tokens)
        self.seconds += answer.total_s - (answer.first_token_s or answer.total_s)
        self.last = facts

    # ---- commands ---------------------------------------------------------------------------------

    def command(self, name: str, rest: str) -> None:
        name, rest = {"exit": "quit", "?": "help"}.get(name, name), rest.strip()
        if name not in COMMANDS:
            raise InvalidArgumentError(f"/{name[:40]}: there is no such command; /help lists them, and // begins a turn with a slash")
        usage = COMMANDS[name][0]
        if (not usage and rest) or (usage and usage[0] != "[" and not rest):
            raise InvalidArgumentError(f"/{name}: wanted {('/' + name + ' ' + usage).rstrip()!r}, got {rest[:40]!r}")
        facts, lines = getattr(self, f"_{name}")(rest)
        if self.as_json:
            print(json.dumps({"command": name, **facts}), flush=True)
        else:
            print("\n".join(lines), file=sys.stderr)

    def _help(self, _):
        width = max(len(f"/{n} {u}") for n, (u, _) in COMMANDS.items())
        return {"commands": {n: w for n, (_, w) in COMMANDS.items()}}, [*(f"{f'/{n} {u}':<{width}}  {what}" for n, (u, what) in COMMANDS.items()), KEYS]

    def _system(self, rest):
        if rest:
            self.chat.system = None if rest == "-" else rest
        return {"system": self.chat.system}, [f"system: {self.chat.system}" if self.chat.system else "no system message"]

    def _params(self, rest):
        name, _, text = rest.partition(" ")
        if rest and (name not in PARAMS or not text.strip()):
            raise InvalidArgumentError(f"/params: wanted a name and a value, the name one of {', '.join(PARAMS)}, got {rest[:40]!r}")
        if text.strip() == "default":
            self.params.pop(name, None)
        elif rest:
            self.params[name] = options.one("/params", name, PARAMS[name], _value(text.strip()))
        return {"params": self.params}, [f"{n}: {self.params.get(n, 'default')}" for n in PARAMS]

    def _retry(self, _):
        if not self.chat.turns:
            raise InvalidArgumentError("/retry: nothing was asked yet")
        kept, answer = list(self.chat.turns), self.chat.turns.pop()
        before = self.params
        self.params = before | {"seed": (before.get("seed", 0) + 1) % (1 << 63)}
        try:
            self._answer()
        except BaseException:
            self.chat.turns, self.params = kept, before
            raise
        return {"instead_of": answer["content"]}, [f"[seed {self.params['seed']}]"]

    def _clear(self, _):
        gone = len(self.chat.turns) // 2
        self.chat.turns = []
        return {"forgotten": gone}, [f"{gone} turns forgotten"]

    def _save(self, rest):
        self.chat.save(rest, self.params)
        return {"file": rest, "turns": len(self.chat.turns) // 2}, [f"{len(self.chat.turns) // 2} turns in {rest}"]

    def _load(self, rest):
        other = Conversation()
        found = other.load(rest)
        if wrong := [n for n in found if n not in PARAMS]:
            raise CorruptDataError(f"{rest}: params: {wrong[0][:40]!r} is none")
        self.params = {n: options.one(rest, f"params.{n}", PARAMS[n], v) for n, v in found.items()}
        self.chat = other
        return {"file": rest, "turns": len(other.turns) // 2}, [f"{len(other.turns) // 2} turns from {rest}"]

    def _stats(self, _):
        used = 0
        if self.chat.turns:
            try:
                used = len(self.chat.prompt_ids(self.model, {}))
            except LimitExceededError:
                used = self.context
        rate = round((self.tokens - self.answers) / self.seconds, 1) if self.seconds and self.tokens > self.answers else None
        facts = {"answers": self.answers, "tokens": self.tokens, "tokens_per_s": rate, "context_used": used, "context": self.context, "last": self.last}
        return facts, [f"{self.answers} answers, {self.tokens} tokens" + (f", {rate} tokens/s" if rate else "") + f"; context: {used} of {self.context} tokens"]

    def _quit(self, _):
        raise Quit


def _value(text: str):
    """What was typed: JSON where it is some, else the text itself, which options then refuse."""
    try:
        return json.loads(text)
    except ValueError:
        return text
