"""Starts the site as a child process and reads its record: one line of JSON for each request."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import NamedTuple, Self

from tools.site.exchange import host_name
from tools.site.plan import PlannedSeed, plan

ROOT = Path(__file__).resolve().parents[2]
STOP_SECONDS = 60


class Entry(NamedTuple):
    time: float  # when the request was complete
    sent: float  # when the answer was, or the client was found gone
    host: str
    port: int
    method: str
    path: str  # with the query
    kind: str
    status: int | None  # None when no status line was sent
    body_bytes: int
    attempt: int  # requests to this URL before
    in_progress: int  # requests of this host under way, this one included
    user_agent: str | None
    cookie: str | None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}{self.path}"


def count_by_url(entries: list[Entry]) -> Counter[str]:
    return Counter(entry.url for entry in entries)


class Site:
    """The running site: `with Site(folder / "record.jsonl") as site: …`.

    `record` is where the child appends its lines; a site started again on the same file
    and port goes on, with its counters of attempts back at zero.
    """

    command = (sys.executable, "-m", "tools.site")

    def __init__(self, record: Path, hosts: int = 60, port: int = 0) -> None:
        self.record = record
        self.hosts = hosts
        self.port = port
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Start the child, out of reach of Ctrl-C, and wait until it listens."""
        told = ["--hosts", str(self.hosts), "--port", str(self.port), "--record", str(self.record)]
        self._process = subprocess.Popen(
            [*self.command, *told],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.startswith("READY "):
            self.stop()
            raise RuntimeError(f"The site did not start: it said {line!r}.")
        self.port = int(line.split()[1])

    def stop(self) -> None:
        """End the child; afterwards the record is whole."""
        if self._process:
            process, self._process = self._process, None
            with process:
                process.terminate()
                try:
                    process.wait(STOP_SECONDS)
                finally:
                    process.kill()

    def url(self, path: str, host: int = 0) -> str:
        return f"http://{host_name(host)}:{self.port}{path}"

    def seeds(self, count: int = 5000, rng_seed: int = 0, only: frozenset[str] | None = None) -> list[PlannedSeed]:
        """A mix of seeds over all kinds of page, or over some kinds."""
        return plan(self.port, count, self.hosts, rng_seed, only)

    def entries(self) -> list[Entry]:
        """All whole lines so far; the newest may be up to 0.2 s late."""
        text = self.record.read_text(encoding="utf-8") if self.record.exists() else ""
        return [Entry(**json.loads(line)) for line in text[: text.rfind("\n") + 1].splitlines()]
