"""vivace top, vivace trace-sched."""
from __future__ import annotations

import json
import sys
import time


def add_top(p) -> None:
    p.add_argument("--interval", type=float, default=1.0, metavar="S", help="between two tables; 0: one table and no more, as with --json or where output is no terminal")


def cmd_top(args) -> int:
    from vivace import schedule_top
    from vivace.errors import InvalidArgumentError

    if not 0 <= args.interval <= 3600:
        raise InvalidArgumentError(f"interval: wanted 0 to 3600 seconds, got {args.interval:g}")
    if args.json:
        print(json.dumps(schedule_top.snapshots()))
        return 0
    once = args.interval == 0 or not sys.stdout.isatty()
    while True:
        text = schedule_top.table(schedule_top.snapshots())
        print(text if once else f"\x1b[H\x1b[J{text}", flush=True)
        if once:
            return 0
        time.sleep(args.interval)


def add_trace(p) -> None:
    p.add_argument("trace", help="what Scheduler.save_trace() wrote; Perfetto (ui.perfetto.dev) opens it as it is")
    p.add_argument("-o", "--out", required=True, metavar="FILE", help="NAME.svg or NAME.html: a timeline; NAME.json: the trace anew")


def cmd_trace(args) -> int:
    from vivace import schedule_trace

    spans = schedule_trace.read(args.trace)
    schedule_trace.write(spans, args.out)
    facts = {"spans": len(spans), "tenants": sorted({tenant for tenant, *_ in spans}), "out": args.out}
    print(json.dumps(facts) if args.json else f"{args.out}: {facts['spans']} spans of {', '.join(facts['tenants'])}")
    return 0
