"""`vivace profile SCRIPT`: runs a program of the user's and says what its launches took."""
from __future__ import annotations

import json
import runpy
import sys
import traceback
from contextlib import nullcontext, redirect_stdout
from pathlib import Path


def add(command) -> None:
    p = command("profile", cmd_profile, "Run a Python script and say what each kernel that it launched took: a table, with --svg a roofline.")
    p.add_argument("script", metavar="SCRIPT", help="the program; what stands behind it are its own arguments")
    p.add_argument("--svg", metavar="FILE", help="draw the launches against the chip's limits")
    p.add_argument("--out", metavar="FILE", help="write the numbers too, .json or .txt")
    p.add_argument("--timer", default="auto", help="auto (CUPTI where the machine has it, else events), events, cupti")
    p.add_argument("arguments", nargs="...", metavar="ARG", help="of the script")


def cmd_profile(args) -> int:
    from vivace import files, profiler
    from vivace.errors import InvalidArgumentError, NotFoundError

    script = Path(args.script)
    if not script.is_file():
        raise NotFoundError(f"profile: {args.script}: {'it is a folder; name a script' if script.is_dir() else 'no such script'}")
    for name, endings in ((args.svg, (".svg",)), (args.out, (".json", ".txt"))):
        if name is not None and Path(name).suffix not in endings:
            raise InvalidArgumentError(f"profile: {name}: wanted a name that ends in {' or '.join(endings)}")
    failed = 0
    with files.new_file(args.svg) if args.svg else nullcontext() as svg, files.new_file(args.out) if args.out else nullcontext() as out:  # a name that cannot be written is told before the work
        with profiler.profile(args.timer) as p, redirect_stdout(sys.stderr) if args.json else nullcontext():
            failed = _run(script, args.arguments)
        if not p.rows:
            raise NotFoundError(f"profile: {args.script} launched nothing of Vivace's; there is nothing to show")
        if svg is not None:
            svg.write(p.svg().encode())
        if out is not None:
            out.write((json.dumps(p.as_dict()) if args.out.endswith(".json") else p.table() + "\n").encode())
    print(json.dumps({**p.as_dict(), "status": failed}) if args.json else p.table())
    return failed


def _run(script: Path, arguments: list[str]) -> int:
    """The script's exit status; what it raises is shown as Python shows it, and is 1."""
    kept, path = sys.argv, list(sys.path)
    sys.argv, sys.path[0:0] = [str(script), *arguments], [str(script.resolve().parent)]
    try:
        runpy.run_path(str(script), run_name="__main__")
    except SystemExit as e:
        if e.code is None or isinstance(e.code, int):
            return e.code or 0
        print(e.code, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    except BaseException:
        kind, value, trace = sys.exc_info()
        while trace is not None and Path(trace.tb_frame.f_code.co_filename) != script:  # our own frames are none of its author's
            trace = trace.tb_next
        traceback.print_exception(kind, value, trace)
        return 1
    finally:
        sys.argv, sys.path[:] = kept, path
    return 0
