"""Renders chat templates for template.py, which starts this file as a process. Imports no part of vivace.

Each line of standard input is a request in JSON, each line of standard output its answer.
"""
import json
import signal
import sys


def environment():
    """jinja2 as transformers sets it up, which is what the templates in hub folders are written for."""
    from datetime import datetime

    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    env = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])

    def raise_exception(message):
        raise TemplateError(message)

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    env.filters["tojson"] = tojson
    env.globals.update(raise_exception=raise_exception, strftime_now=lambda form: datetime.now().strftime(form))
    return env


def render(env, request) -> dict:
    from jinja2 import TemplateError

    most = request["most_chars"]
    try:
        pieces, size = [], 0
        for piece in env.from_string(request["template"]).generate(**request["values"]):
            size += len(piece)
            if size > most:
                return {"limit": f"it rendered more than {most} characters"}
            pieces.append(piece)
        return {"text": "".join(pieces)}
    except RecursionError:
        return {"limit": "it nests too deeply"}
    except MemoryError:
        return {"limit": "it needs more memory than a template may have"}
    except TemplateError as e:
        return {"error": str(e)[:2000]}
    except Exception as e:  # what a template does to its values is any exception of Python's
        return {"error": f"{type(e).__name__}: {e}"[:2000]}


def main() -> None:
    import resource

    path, memory = json.loads(sys.stdin.readline())
    sys.path[:] = path  # where the parent finds jinja2
    env = environment()
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    print("ready", flush=True)
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # at its end the system ends this process, whatever it is in
        answer = render(env, request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
