"""A chat as it goes on: its messages, what of them fits the context, and its file."""
from __future__ import annotations

import json
from collections.abc import Iterator

from vivace import files
from vivace.answers import StreamEvent
from vivace.errors import CorruptDataError, LimitExceededError
from vivace.session import as_drawn

FORM = "vivace chat 1"  # of a saved file
MAX_ANSWER = 512  # tokens, unless max_tokens says otherwise
SHARE = 4  # of the context, what is kept free for an answer at most: 1 / SHARE


class Conversation:
    """Turns of user and assistant, oldest first, under an optional system message."""

    def __init__(self, system: str | None = None):
        self.system, self.turns = system, []
        self._drawn: tuple[list[dict], list[int], list[int]] | None = None  # of the last answer: messages before it, their ids, and ids as drawn with it
        self._asked: tuple[list[int], list[int]] = ([], [])  # of the last prompt: as the template has it, and as it was asked

    def messages(self) -> list[dict]:
        return ([{"role": "system", "content": self.system}] if self.system else []) + self.turns

    def say(self, text: str) -> None:
        self.turns.append({"role": "user", "content": text})

    def answered(self, text: str) -> None:
        self.turns.append({"role": "assistant", "content": text})

    def forget_oldest(self) -> bool:
        """Takes away the oldest question and what answers it; False where only the last one is left."""
        later = next((i for i in range(1, len(self.turns)) if self.turns[i]["role"] == "user"), None)
        if later is None:
            return False
        del self.turns[:later]
        return True

    def prompt_ids(self, model, values: dict) -> list[int]:
        """With the tokens of the last answer as they were drawn, which are found computed (docs/sessions.md)."""
        messages = self.messages()
        prompt = ids = model.prompt_ids(messages if model.text.template else "\n".join(m["content"] for m in messages), **values)
        if self._drawn is not None:
            before, asked, drawn = self._drawn
            if messages[:len(before)] == before and len(messages) == len(before) + 2:
                ids = as_drawn(model.text, prompt, asked, messages[len(before)]["content"], drawn)
        self._asked = prompt, ids
        return ids

    def note(self, made: list[int]) -> None:
        """The last prompt was answered with these tokens, to the end."""
        prompt, ids = self._asked
        self._drawn = self.messages(), prompt, [*ids, *made]

    def fitted(self, model, room: int, values: dict) -> tuple[list[int], int]:
        """Ids of the prompt, and how many of the oldest turns were forgotten so that `room` tokens of an answer, or else the
        prompt alone, fit the context. Errors: LimitExceededError where the last turn alone does not."""
        context, forgotten = model.report()["context"], 0
        while True:
            try:
                ids = self.prompt_ids(model, values)
                if len(ids) + room <= context + 1:  # the last token of an answer is not fed back
                    return ids, forgotten
            except LimitExceededError:
                if not self.forget_oldest():
                    raise
            else:
                if not self.forget_oldest():
                    if len(ids) > context:
                        raise LimitExceededError(f"this turn has {len(ids)} tokens with what the chat template adds, and the context {context}; shorten it, or take a larger --context")
                    return ids, forgotten
            forgotten += 1

    # ---- its file ---------------------------------------------------------------------------------

    def save(self, path: str, params: dict) -> None:
        files.write_text(path, json.dumps({"form": FORM, "system": self.system, "turns": self.turns, "params": params}, ensure_ascii=False, indent=1) + "\n")

    def load(self, path: str) -> dict:
        """Takes what save() wrote; its params, which nobody has looked at. Errors: CorruptDataError; nothing has changed then."""
        kept = files.read_json(path)
        system, turns, params = kept.get("system"), kept.get("turns"), kept.get("params")
        at = files.printable(path, 4096)
        if kept.get("form") != FORM:
            raise CorruptDataError(f"{at}: wanted a file that /save wrote (form {FORM!r}), got {files.printable(str(kept.get('form')), 40)!r}")
        if not (system is None or isinstance(system, str)) or not isinstance(turns, list) or not isinstance(params, dict):
            raise CorruptDataError(f"{at}: wanted system (a text or null), turns (a list) and params (an object)")
        for i, turn in enumerate(turns):
            wanted = ("user", "assistant")[i % 2]
            if not isinstance(turn, dict) or set(turn) != {"role", "content"} or turn["role"] != wanted or not isinstance(turn["content"], str):
                raise CorruptDataError(f"{at}: turns[{i}]: wanted role {wanted!r} and content, a text")
        if len(turns) % 2:
            raise CorruptDataError(f"{at}: turns: the last one has no answer")
        self.system, self.turns = system, turns
        return params


def reply(model, chat: Conversation, params: dict, *, forgot) -> Iterator[StreamEvent]:
    """The answer to the last turn. Where the context is full before the answer is over, the oldest turns are forgotten and
    it goes on; forgot(n) is told how many each time. `params`: options of stream(), and enable_thinking."""
    options = {k: v for k, v in params.items() if k != "enable_thinking"}
    values = {k: v for k, v in params.items() if k == "enable_thinking"}
    wanted = options.pop("max_tokens", None)
    wanted = MAX_ANSWER if wanted is None else wanted
    context, decode, made, finish = model.report()["context"], model.text.stream(), [], "length"
    while len(made) < wanted or not made:
        room = max(1, min(wanted - len(made), context // SHARE)) + len(made)
        ids, forgotten = chat.fitted(model, room, values)
        if forgotten:
            forgot(forgotten)
        left = context + 1 - len(ids) - len(made)
        if made and (not forgotten or left < 1):
            break  # the last turn and its answer fill the context
        piece = options | ({"seed": options.get("seed", 0) + len(made)} if made else {})
        with model.stream([*ids, *made], max_tokens=min(wanted - len(made), left) if wanted > 0 else wanted, **piece) as chunks:
            for c in chunks:
                if c.finish not in (None, "length"):
                    finish = c.finish
                if c.token is not None:
                    made.append(c.token)
                    yield StreamEvent(decode(c.token), c.token, c.logprob)
        if finish != "length":
            break
    if finish != "cancelled":
        chat.note(made)
    yield StreamEvent("", None, None, finish)
