"""What a long heat costs as time goes on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tools.race.meter import Reading

STRETCH_SECONDS = 300.0


@dataclass(frozen=True)
class Stretch:
    """Some minutes of a heat."""

    minutes: float  # from the first page to its end
    pages: int  # served by then
    cpu_us: float  # a page, of those served in it
    servers_cpu_us: float  # likewise, of the servers
    resident_bytes: int  # in the end


def stretches(readings: Sequence[Reading], seconds: float = STRETCH_SECONDS) -> Iterator[Stretch]:
    """Of `seconds` each, from the first page on; the last is shorter if it must be."""
    running = [reading for reading in readings if reading.served and reading.resident_bytes]
    if not running:
        return
    began = before = running[0]
    for reading in running:
        if reading.at >= before.at + seconds or (reading is running[-1] and reading.served > before.served):
            yield _stretch(began, before, reading)
            before = reading


def _stretch(began: Reading, before: Reading, end: Reading) -> Stretch:
    per_page = 1e6 / max(1, end.served - before.served)
    return Stretch(
        minutes=(end.at - began.at) / 60,
        pages=end.served,
        cpu_us=(end.cpu_seconds - before.cpu_seconds) * per_page,
        servers_cpu_us=(end.servers_cpu_seconds - before.servers_cpu_seconds) * per_page,
        resident_bytes=end.resident_bytes,
    )
