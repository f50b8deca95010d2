"""What a run came to: a table, what is wrong as lines that run, and the rows of the receipt."""
import json

from tests.op_data import OPS


def reached(kernels, capability=90):
    """op -> (instances that ran, instances of its table, some of those that did not)."""
    from vivace import _core

    out = {}
    for op, row in OPS.items():
        if row["gpu"]:
            known = sorted({e for _, e in _core.gpu_instances(op, capability)})
            out[op] = (sum(e in kernels for e in known), len(known), [e.replace("vivace::kernels::", "") for e in known if e not in kernels])
    return out


def rows(seeds, mode, tallies, crashes, tactics):
    """A row an op, and their sum."""
    total = wrong = 0
    for op, t in sorted(tallies.items()):
        done, known, _ = tactics.get(op, (0, 0, []))
        note = f"{seeds}, {mode}; {sum(t.refused.values())} refused" + (f"; tactics {done} / {known}" if known else "")
        yield {"op": op, "case": f"op={op},metric=calls" + ("" if mode == "values" else f",mode={mode}"), "tool": "fuzz", "n": t.ran, "value": len(t.wrong), "pass": not t.wrong, "note": note}
        total, wrong = total + t.ran, wrong + len(t.wrong)
    done, known = sum(d for d, _, _ in tactics.values()), sum(k for _, k, _ in tactics.values())
    note = f"{seeds}, {mode}" + (f"; tactics {done} / {known}" if known else "") + (f"; {len(crashes)} processes crashed" if crashes else "")
    yield {"op": "all", "case": "scope=all,metric=calls" + ("" if mode == "values" else f",mode={mode}"), "tool": "fuzz", "n": total, "value": wrong, "pass": total > 0 and not wrong and not crashes, "note": note}


def report(args, mode, tallies, crashes, kernels, seconds):
    """Of one mode; the kernels are those of the whole run, and stand beside the first mode's calls. `seconds`: of the whole run."""
    device, first = args.device != "cpu", mode == args.mode[0]
    seeds = f"seed {args.seed}" if args.gpus == 1 else f"seeds {args.seed} to {args.seed + args.gpus - 1}"
    tactics = reached(kernels) if device and first else {}
    blind = {op: said for op, t in tallies.items() if (said := t.blind(op, device))} if mode == "values" else {}
    print(f"{'op':<20} {'calls':>7} {'refused':>8} {'wrong':>6} {'ms':>6}" + (f" {'tactics':>11}" if tactics else ""))
    for op, t in sorted(tallies.items()):
        print(f"{op:<20} {t.ran:>7} {sum(t.refused.values()):>8} {len(t.wrong):>6} {1e3 * t.seconds / max(t.drawn, 1):>6.1f}" + (f" {tactics[op][0]:>5} / {tactics[op][1]}" if op in tactics else ""))
    for op, (done, known, missing) in tactics.items():
        if missing:
            print(f"not reached, {op}: {len(missing)} of {known}:", *missing[:6], sep="\n    ")
    for op, said in blind.items():
        print(f"BLIND {op}: " + "; ".join(said))
    for status, line in crashes:
        print(f"CRASHED with {status} at {line}")
    for op, t in sorted(tallies.items()):
        for seed, what, line in t.wrong[:3]:
            print(f"WRONG {op}, seed {seed}: {what}\n    {line}")
    calls, wrong = sum(t.ran for t in tallies.values()), sum(len(t.wrong) for t in tallies.values())
    print(f"{mode}, {seeds}: {calls} calls in a run of {seconds:.0f} s, {wrong} wrong, {len(crashes)} processes crashed, {len(blind)} ops seen in part")
    if args.rows:
        with open(args.rows, "a") as f:
            f.writelines(json.dumps(r) + "\n" for r in rows(seeds, mode, tallies, crashes, tactics))
    return 1 if wrong or crashes or blind else 0
