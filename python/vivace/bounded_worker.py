"""The other side of bounded.py: what a process of its own does before and around each question. Imports no part of vivace."""
import importlib.util
import json
import os
import signal
import sys
from pathlib import Path


def beside(name: str):
    """A module of this folder, by its path."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def serve(prepare) -> None:
    """`prepare(file, limited)` gives the function that answers requests. file: what bounded.py passed along, or None;
    limited(): called as soon as what needs memory is no longer ours, sets the limit of memory."""
    import resource

    path, memory, seconds, *number = json.loads(sys.stdin.readline())
    sys.path[:] = path  # where the parent finds its packages
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def say(answer):
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()

    def limited():
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    signal.setitimer(signal.ITIMER_PROF, seconds)  # at its end the system ends this process, whatever it is in
    try:
        answer = prepare(os.fdopen(os.dup(number[0]), "rb") if number else None, limited)
    except MemoryError:
        return say({"error": "it needs more memory than it may have"})
    except BaseException as e:  # the tokenizers library panics at some files
        return say({"error": f"{type(e).__name__}: {e}"[:500]})
    signal.setitimer(signal.ITIMER_PROF, 0)
    say({})
    for line in sys.stdin:
        request = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, request["seconds"])
        said = answer(request)
        signal.setitimer(signal.ITIMER_PROF, 0)
        say(said)
