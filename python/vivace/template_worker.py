"""Renders chat templates for template.py, which starts this file as a process. Imports no part of vivace but what lies beside
it, by its path."""
import importlib.util
import json
import random
from pathlib import Path

_spec = importlib.util.spec_from_file_location("bounded_worker", Path(__file__).with_name("bounded_worker.py"))
bounded_worker = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bounded_worker)

CACHED = 4  # compiled templates


class Worker:
    def __init__(self):
        from jinja2 import TemplateError
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        self.words = bounded_worker.beside("template_words")

        class Refused(TemplateError):
            """The template's own: raise_exception()."""

        self.TemplateError, self.Refused, self.compiled = TemplateError, Refused, {}
        # jinja2 as transformers sets it up, which is what the templates in hub folders are written for.
        options = dict(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
        self.plain, self.marked = ImmutableSandboxedEnvironment(**options), self.words.MarkedEnvironment(**options)
        for env in (self.plain, self.marked):
            env.globals.update(raise_exception=self.refuse, strftime_now=lambda form: self.now.strftime(form))
        self.plain.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: json.dumps(
            x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
        self.marked.filters["tojson"] = lambda x, ensure_ascii=False, indent=None, separators=None, sort_keys=False: self.marked.marks.json(
            x, ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def refuse(self, message):
        raise self.Refused(message)

    def write(self, env, source: str, values: dict, most: int) -> str:
        template = self.compiled.get((env, source))
        if template is None:
            if len(self.compiled) >= 2 * CACHED:
                self.compiled.clear()
            template = self.compiled[env, source] = env.from_string(source)
        random.seed(0)  # both renderings draw the same
        pieces, size = [], 0
        for piece in template.generate(**values):
            size += len(piece)
            if size > most:
                raise MemoryError(f"it rendered more than {most} characters")
            pieces.append(piece)
        return "".join(pieces)

    def render(self, request) -> dict:
        from datetime import datetime

        self.now = datetime.now()
        source, values, most = request["template"], request["values"], request["most_chars"]
        self.marked.marks = marks = self.words.Marks()
        try:
            text = self.write(self.plain, source, values, most)
            if "own" not in request:
                return {"text": text}
            own = {k: v for k, v in values.items() if k in request["own"]}
            given = marks.tree({k: v for k, v in values.items() if k not in own})
            given = {str(marks.read(k)): v for k, v in given.items()}
            for message, says in zip(given.get("messages", ()), values.get("messages", ())):
                if says.get("role") in request["roles"]:
                    message["role"] = says["role"]
            try:
                marked = self.write(self.marked, source, own | given, most)
            except (RecursionError, MemoryError):
                raise
            except Exception as e:  # the first rendering had none
                return {"lost": f"{type(e).__name__}: {marks.read(str(e))}"[:300]}
            if (read := marks.read(marked)) != text:
                at = next((i for i, (a, b) in enumerate(zip(text, read)) if a != b), min(len(text), len(read)))
                return {"lost": f"at character {at} it wrote {text[max(0, at - 20):at + 20]!r}"}
            return {"text": text, "words": [m.span() for m in self.words.MARKED.finditer(marked)]}
        except RecursionError:
            return {"limit": "it nests too deeply"}
        except MemoryError as e:
            return {"limit": str(e) or "it needs more memory than a template may have"}
        except self.words.TooMany:
            return {"limit": f"the messages have more than {self.words.LAST - self.words.FIRST} different characters"}
        except self.Refused as e:
            return {"refused": marks.read(str(e))[:2000]}
        except self.TemplateError as e:
            return {"error": str(e)[:2000]}
        except Exception as e:  # what a template does to its values is any exception of Python's
            return {"error": f"{type(e).__name__}: {e}"[:2000]}


def prepare(_, limited):
    worker = Worker()
    limited()
    return worker.render


if __name__ == "__main__":
    bounded_worker.serve(prepare)
