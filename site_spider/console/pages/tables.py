"""The pages that are tables: processes, hosts, sinks."""

from __future__ import annotations

from collections import Counter, defaultdict

from site_spider.console.model.fleet import Life
from site_spider.console.model.state import HostState, ProcessState, SinkState
from site_spider.console.pages.overview import lives
from site_spider.console.pages.view import Document, View, matches, moment

MOST_ROWS = 1_000


def processes(view: View, wanted: str = "") -> Document:
    """All that are known; those that are silent come first."""
    order = {Life.SILENT: 0, Life.RUNNING: 1, Life.ENDED: 2}
    known = sorted(view.fleet.seen.values(), key=lambda seen: (order[seen.life(view.now)], seen.state.name))
    found = [seen for seen in known if matches(wanted, seen.state.name, seen.state.machine)]
    rows = [
        {
            **_process(seen.state),
            "life": seen.life(view.now).value,
            "last_seen": moment(seen.at),
            "seconds_since": round(max(0.0, view.now - seen.at)),
        }
        for seen in found[:MOST_ROWS]
    ]
    return view.heading("processes") | {
        "wanted": wanted,
        "count": len(found),
        "lives": lives(view),
        "processes": rows,
        "other_groups": list(view.others),
    }


def _process(state: ProcessState) -> Document:
    return {
        "process": state.name,
        "machine": state.machine,
        "pid": state.pid,
        "slot": state.slot,
        "spider": state.spider,
        "started_at": moment(state.started_at),
        "consumed": state.consumed,
        "completed": state.completed,
        "in_flight": state.in_flight,
        "missing": state.missing,
        "waiting": state.waiting,
        "requests_out": state.requests_out,
        "partitions": list(state.partitions),
        "memory_bytes": state.memory_bytes,
        "loop_lag_seconds": state.loop_lag_seconds,
        "pause": state.pause_said or ", ".join(state.pausing),
        "paused_seconds": {cause: spent for cause, spent in state.paused.items() if spent},
        "log_is_away": state.log_is_away,
    }


def hosts(view: View, wanted: str = "", reason: str = "") -> Document:
    """The largest hosts over all running processes."""
    living = view.fleet.living(view.now)
    by_name: dict[str, list[tuple[ProcessState, HostState]]] = defaultdict(list)
    for state in living:
        for host in state.hosts:
            by_name[host.host].append((state, host))
    rows = [_host(name, found) for name, found in by_name.items() if matches(wanted, name)]
    rows = [row for row in rows if not reason or reason in row["reasons"]]
    rows.sort(key=lambda row: (-row["waiting"], row["host"]))
    whole: Counter[str] = Counter()
    for state in living:
        whole.update(state.host_reasons)
    return view.heading("hosts") | {
        "wanted": wanted,
        "reason": reason,
        "reasons": dict(whole),
        "waits_for": {name: count for name, count in whole.items() if name != "waiting"},
        "waiting": sum(state.waiting for state in living),
        "count": len(rows),
        "hosts": rows[:MOST_ROWS],
    }


def _host(name: str, found: list[tuple[ProcessState, HostState]]) -> Document:
    turns = [host.next_in_seconds for _, host in found if host.next_in_seconds is not None]
    return {
        "host": name,
        "waiting": sum(host.waiting for _, host in found),
        "out": sum(host.out for _, host in found),
        "reasons": sorted({host.reason for _, host in found}),
        "next_in_seconds": min(turns, default=None),
        "processes": [state.name for state, _ in found],
    }


def sinks(view: View) -> Document:
    """Each sink with what its processes say."""
    by_name: dict[str, list[tuple[ProcessState, SinkState]]] = defaultdict(list)
    for state in view.fleet.living(view.now):
        for sink in state.sinks:
            by_name[sink.name].append((state, sink))
    rows = [_sink(name, found) for name, found in sorted(by_name.items())]
    return view.heading("sinks") | {"sinks": rows}


def _sink(name: str, found: list[tuple[ProcessState, SinkState]]) -> Document:
    away = [state.name for state, sink in found if not sink.available]
    accepts = [sink.last_accept_at for _, sink in found if sink.last_accept_at is not None]
    return {
        "sink": name,
        "processes": len(found),
        "away_for": away,
        "backlog": sum(sink.backlog for _, sink in found),
        "backlog_bytes": sum(sink.backlog_bytes for _, sink in found),
        "backlog_limit_bytes": sum(sink.limit_bytes for _, sink in found),
        "last_accept_at": moment(max(accepts, default=None)),
    }
