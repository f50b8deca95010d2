"""A scheduler's counts in Prometheus's text form. Names are stable."""
from __future__ import annotations

COUNTERS = {  # name -> (field, what it counts)
    "calls_total": ("calls", "Calls of guaranteed tenants, steps of others."),
    "deadline_missed_total": ("missed", "Calls that ended after their deadline."),
    "overrun_total": ("overruns", "Calls that took more than 1.2 x their worst time."),
    "watchdog_open_total": ("lost", "Calls whose gate the watchdog opened."),
    "whole_calls_total": ("whole_calls", "Calls of a policy with a partition that had the whole device."),
    "early_total": ("early", "Calls before which others stood back in time."),
    "early_wrong_total": ("early_wrong", "Calls that were expected and did not come."),
    "device_us_total": ("device_us", "Device time, us."),
}
GAUGES = {
    "wcet_us": ("wcet_us", "What a call or step takes at worst, as admitted, us."),
    "bound_us": ("bound_us", "Longest work between two gates, us."),
    "promised_share": ("promised", "Part of the device's time that it has while all want to run."),
    "demoted": ("demoted", "1 once it overran too often."),
    "asleep": ("asleep", "1 while its memory is on the host."),
    "fits": ("fits", "0 once times that were seen since break what was admitted."),
}


def text(now: dict, rows: dict) -> str:
    out = []

    def metric(name, kind, about, samples):
        out.append(f"# HELP vivace_sched_{name} {about}\n# TYPE vivace_sched_{name} {kind}")
        out.extend(f"vivace_sched_{name}{labels} {value:.9g}" for labels, value in samples)

    def each(value):
        return [(_labels(tenant=name, **{"class": row["qos"]["cls"]}), value(row)) for name, row in rows.items()]

    metric("healthy", "gauge", "0 while a call is lost.", [("", now["healthy"])])
    metric("utilisation", "gauge", "Part of the device's time that is promised.", [("", now["utilisation"])])
    metric("queue_depth", "gauge", "Guaranteed calls that wait.", [("", now["queue_depth"])])
    metric("gate_closed_us_total", "counter", "Time for which guaranteed calls kept others back, us.", [("", now["gate_closed_us"])])
    for name, (field, about) in COUNTERS.items():
        metric(name, "counter", about, each(lambda row, field=field: row[field]))
    metric("rejected_total", "counter", "Calls that were refused: their deadline could not be met, or too many waited.", each(lambda row: row["rejected"]))
    for name, (field, about) in GAUGES.items():
        metric(name, "gauge", about, each(lambda row, field=field: row[field]))
    metric("bytes_reserved", "gauge", "Bytes of its model.", each(lambda row: row["qos"]["bytes"]))
    metric("bytes_resident", "gauge", "Of these, on the device.", each(lambda row: 0 if row["asleep"] else row["qos"]["bytes"]))
    metric("bytes_evicted", "gauge", "Of these, on the host while it sleeps.", each(lambda row: row["qos"]["bytes"] if row["asleep"] else 0))
    for name, about in (("wait_us", "Until a call's turn; of a step, at gates."), ("response_us", "Of a whole call or step.")):
        out.append(f"# HELP vivace_sched_{name} {about}\n# TYPE vivace_sched_{name} histogram")
        for tenant, row in rows.items():
            h = row[name]
            for bound, count in [*h["below"], ("+Inf", h["count"])]:
                le = bound if isinstance(bound, str) else f"{bound:g}"
                out.append(f"vivace_sched_{name}_bucket{_labels(tenant=tenant, le=le)} {count}")
            out.append(f"vivace_sched_{name}_sum{_labels(tenant=tenant)} {h['sum']:.9g}\nvivace_sched_{name}_count{_labels(tenant=tenant)} {h['count']}")
    return "\n".join(out) + "\n"


def _labels(**labels) -> str:
    def quoted(value):
        return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'

    return "{" + ",".join(f"{name}={quoted(value)}" for name, value in labels.items()) + "}"
