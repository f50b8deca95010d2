"""Conversations that compute each turn once: model.session()."""
from __future__ import annotations

import time

from vivace.answers import Answer, Stream
from vivace.errors import InvalidArgumentError
from vivace.options import GENERATE, checked, one, utf8

MOST_TOKENS = 512  # of an answer, unless the caller says


def as_drawn(text, prompt: list[int], before: list[int], said: str, ids: list[int]) -> list[int]:
    """`prompt`, where it goes on from the prompt `before` and the answer `said`, with the tokens of both as they were drawn, `ids`: a text's own tokens need
    not be those."""
    known = before + text.encode(said)
    return ids + prompt[len(known):] if prompt[:len(known)] == known else prompt


class Session:
    """A chat with one model. `send` and `stream` add a turn; what was said before is found computed (num_kv_blocks, docs/sessions.md), so that a turn
    costs its own words. Where the context is full the oldest turns are forgotten, the system message never: see `forgotten`. For one
    thread at a time; any number of sessions share a model."""

    def __init__(self, model, system: str | None = None, **options):
        checked("session", GENERATE, options)
        if system is not None:
            system = one("session", "system", utf8, system)
        self._model, self._options = model, options
        self._system = [] if system is None else [{"role": "system", "content": system}]
        self._turns: list[dict] = []
        self._prompt: list[int] = []  # as the template wrote the last turn's
        self._ids: list[int] = []     # the same with the tokens that were drawn, and those before it as they were drawn
        self.forgotten = 0            # messages
        self._capsule = None          # what the next turn begins with

    @property
    def messages(self) -> list[dict]:
        """What the model sees of the conversation."""
        return [*self._system, *self._turns]

    def send(self, text: str, **options) -> Answer:
        """A turn. Errors leave the conversation as it was before it."""
        start = time.perf_counter()
        stream = self.stream(text, **options)
        answer = Answer(prompt_tokens=stream.prompt_tokens)
        for chunk in stream:
            answer.add(chunk, time.perf_counter() - start)
        answer.note(stream)
        return answer

    def stream(self, text: str, **options) -> "Turn":
        """The same, a StreamEvent at a time. The turn is part of the conversation once it was read to its end, or closed: then as far as it came."""
        text = one("session", "text", utf8, text)
        options = self._options | options
        turns = [*self._turns, {"role": "user", "content": text}]
        reserve = options.get("max_tokens") or min(MOST_TOKENS, self._model._live.limits()["context"] // 4)
        turns, prompt, ids = self._fit(turns, reserve)
        request, facts = self._model._prepare(ids, self._model.text, **options | dict(max_tokens=reserve))
        not_brought = self._capsule.bring() if self._capsule is not None else ""
        turn = Turn(self, turns, prompt, ids, self._model._submit(request), facts)
        turn.not_brought = not_brought
        self._capsule = None
        return turn

    def capsule(self):
        """How the conversation stands (vivace.capsule.Capsule), for model.restore(); this one goes on as it likes."""
        from vivace import capsule

        messages = self.messages
        tokens = self._ids or (self._model.text.chat_ids(messages, add_generation_prompt=False) if messages else [])
        state = {"kind": "session", "options": capsule.kept(self._options), "system": self._system, "turns": self._turns, "prompt": self._prompt, "drawn": bool(self._ids), "forgotten": self.forgotten}
        return capsule.make(self._model, state, list(tokens), self._options.get("salt", ""))

    @classmethod
    def of_capsule(cls, model, capsule, options: dict) -> "Session":
        made, state = cls(model, **options), capsule.state
        made._system, made._turns, made._prompt, made.forgotten = list(state["system"]), list(state["turns"]), list(state["prompt"]), state["forgotten"]
        made._ids, made._capsule = list(capsule.tokens) if state.get("drawn") else [], capsule
        return made

    def _fit(self, turns: list[dict], reserve: int) -> tuple[list[dict], list[int], list[int]]:
        """What is left of the turns with room for an answer, and their ids. Once the context is full half of it is made free, so
        that not every further turn begins anew."""
        room = self._model._live.limits()["context"] - reserve + 1
        prompt, ids = self._ids_of(turns)
        if len(ids) <= room:
            return turns, prompt, ids
        while len(turns) > 1 and len(prompt) > room // 2:
            turns = turns[2:] if turns[1]["role"] == "assistant" else turns[1:]
            prompt = self._model.text.chat_ids([*self._system, *turns])
        return turns, prompt, prompt

    def _ids_of(self, turns: list[dict]) -> tuple[list[int], list[int]]:
        """As the template writes them; and with the tokens that were drawn in place of those that their text would have."""
        text = self._model.text
        prompt = text.chat_ids([*self._system, *turns])
        if self._ids and self._turns and turns[:-1] == self._turns:
            return prompt, as_drawn(text, prompt, self._prompt, self._turns[-1]["content"], self._ids)
        return prompt, prompt

    def _add(self, turns: list[dict], prompt: list[int], ids: list[int], tokens: list[int] | None, text: str) -> None:
        self.forgotten += len(self._turns) + 1 - len(turns)
        self._turns = [*turns, {"role": "assistant", "content": text}]
        self._prompt, self._ids = prompt, [] if tokens is None else ids + tokens  # a stop string may have cut a token's text


class Turn(Stream):
    """An answer in a session, as it is made."""

    def __init__(self, session, turns, prompt, ids, request, facts):
        super().__init__(session._model, request, **facts)
        self._session, self._begin, self._said, self._drawn = session, (turns, prompt, ids), [], []

    def __next__(self):
        session, self._session = self._session, None  # an error on the way leaves the conversation as it was
        chunk = super().__next__()
        self._session = session
        self._said.append(chunk.text)
        if chunk.token is not None:
            self._drawn.append(chunk.token)
        if chunk.finish is not None:
            self._note()
        return chunk

    def close(self) -> None:
        super().close()
        self._note()

    def _note(self) -> None:
        session, self._session = self._session, None
        if session is not None and self._drawn:
            session._add(*self._begin, None if self._stops else self._drawn, "".join(self._said))
