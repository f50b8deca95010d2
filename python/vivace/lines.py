"""What a chat reads: a line or several, from a terminal with line editing and history, or from a pipe."""
from __future__ import annotations

import os
import sys
from collections.abc import Callable

from vivace.errors import Error, InvalidArgumentError, LimitExceededError, UnsupportedError

QUOTES = '"""'
MAX_CHARS = 4 << 20  # of one turn


def turn(read: Callable[[bool], str]) -> str:
    """A turn: one line; several where each but the last ends with a backslash, or between two lines that hold three double
    quotes. read(more) gives a line without its end, `more` after the first. Errors: EOFError at the end of what there is."""
    first = read(False)
    if first.strip() == QUOTES:
        lines, size = [], 0
        while (line := _more(read)) is not None and line.strip() != QUOTES:
            size = _counted(size, line)
            lines.append(line)
        if line is None:
            raise InvalidArgumentError(f"a turn that began with {QUOTES} has no line {QUOTES} at its end")
        return "\n".join(lines)
    lines, size = [first], _counted(0, first)
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        if (line := _more(read)) is None:
            break
        size = _counted(size, line)
        lines.append(line)
    return "\n".join(lines)


def _more(read) -> str | None:
    try:
        return read(True)
    except EOFError:
        return None


def _counted(size: int, line: str) -> int:
    if size + len(line) > MAX_CHARS:
        raise LimitExceededError(f"a turn of more than {MAX_CHARS} characters")
    return size + len(line) + 1


class Piped:
    """Lines of a stream that is no terminal, or one without line editing."""

    def __init__(self, stream, prompt: str = ""):
        self._stream, self._prompt = stream, prompt

    def turn(self) -> str:
        return turn(self._read)

    def _read(self, more: bool) -> str:
        if self._prompt:
            print("... " if more else self._prompt, end="", file=sys.stderr, flush=True)
        line = self._stream.readline(MAX_CHARS + 2)
        if not line:
            raise EOFError
        return line.removesuffix("\n").removesuffix("\r")


class Terminal:
    """Line editing: arrows, history over sessions, Ctrl-R, Alt-Enter or Ctrl-J for a line end, pasted text as it is."""

    def __init__(self, prompt: str, words: list[str], history: str | None):
        """`words`: completed with Tab. `history`: a file of this user alone, or None. Errors: UnsupportedError without prompt_toolkit."""
        try:
            from prompt_toolkit import PromptSession
            from prompt_toolkit.completion import WordCompleter
            from prompt_toolkit.history import FileHistory, InMemoryHistory
            from prompt_toolkit.key_binding import KeyBindings
        except ImportError as e:
            raise UnsupportedError(f"chat: {e.name} is not installed; pip install 'vivace[chat]', or take --plain: no line editing, no history") from e
        keys = KeyBindings()
        for key in (("escape", "enter"), ("c-j",)):
            keys.add(*key)(lambda event: event.current_buffer.insert_text("\n"))
        kept = InMemoryHistory() if history is None else FileHistory(history)
        self._prompt, self._session = prompt, PromptSession(history=kept, key_bindings=keys, completer=WordCompleter(words, sentence=True), complete_while_typing=False)

    def turn(self) -> str:
        """Errors: KeyboardInterrupt at Ctrl-C, EOFError at Ctrl-D."""
        return turn(lambda more: self._session.prompt("... " if more else self._prompt))


def history_file() -> str | None:
    """The file that keeps what was typed: mode 0600 in the cache's folder. None, with a note, where that cannot be used."""
    from vivace import fetch
    from vivace.cache import private_folder

    folder = fetch.cache_dir().parent
    try:
        fd = private_folder(folder)
        try:
            os.close(os.open("chat_history", os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=fd))
        finally:
            os.close(fd)
    except (Error, OSError) as e:
        print(f"vivace: what is typed is not kept: {e}", file=sys.stderr)
        return None
    return str(folder / "chat_history")
