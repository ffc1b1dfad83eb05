"""What a contestant is: a command, and a place where its records come out."""

from __future__ import annotations

import json
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from tools.chaos.crew import Process
from tools.race.track import Track
from tools.race.workload import Workload

CONCURRENCY = 32  # downloads at a time, of everybody
PER_HOST = 8  # of one host, where a contestant knows such a limit


class HeatFailed(Exception):
    """A contestant did not do the work; the message says what was missing."""


class Record(NamedTuple):
    """One page in the output."""

    url: str
    status: int
    body_characters: int
    acknowledged: float | None  # when the sink had it; None where nothing says so


@dataclass(frozen=True)
class Heat:
    """One contestant's turn at one workload, in a folder of its own."""

    workload: Workload
    folder: Path
    track: Track

    @property
    def seeds(self) -> list[str]:
        return list(self.workload.seed_urls(self.track.port(self.workload)))

    def seed_file(self) -> Path:
        file = self.folder / "seeds.txt"
        file.write_text("".join(f"{url}\n" for url in self.seeds))
        return file


class Contestant(ABC):
    """One turn; made anew for each."""

    name: str
    writes: str  # what and where, for the reader of the table
    variables: ClassVar[Mapping[str, str]] = {}  # where the servers are: SITE_KAFKA_BROKERS, ...
    requirements = ""  # the file of an environment of its own; empty: the project's
    stops_itself = True  # when all is done; the others are sent SIGTERM
    holds_back = False  # its last records come out when it is stopped

    def __init__(self, heat: Heat) -> None:
        self.heat = heat

    @classmethod
    def takes_part(cls, _workload: Workload) -> bool:
        """Whether it would do anything else than another one."""
        return True

    @abstractmethod
    def prepare(self) -> None:
        """All that is no part of the race: seeds where it takes them from."""

    @abstractmethod
    def command(self) -> list[str]: ...

    def environment(self) -> dict[str, str]:
        """What is added to the runner's."""
        return {"SSL_CERT_FILE": str(self.heat.track.authority)}

    def started(self, _log: Path, _process: subprocess.Popen[bytes]) -> None:  # noqa: B027 # most do nothing
        """What is still to be done once it runs; raise HeatFailed if it does not."""

    def counts(self, _process: Process) -> bool:
        """Whether a process of it is one whose CPU and memory are its cost."""
        return True

    @abstractmethod
    def recorded(self) -> int:
        """How many records have come out so far."""

    @abstractmethod
    def records(self) -> Iterator[Record]:
        """All of them, when it has ended."""

    def close(self) -> None:  # noqa: B027 # likewise
        """Leave nothing behind."""


class FileContestant(Contestant):
    """Writes a line of JSON for each page."""

    writes = "JSON lines"

    def __init__(self, heat: Heat) -> None:
        super().__init__(heat)
        self.output = heat.folder / "output.jsonl"
        self._read_to = self._lines = 0

    def prepare(self) -> None:
        self.heat.seed_file()

    def recorded(self) -> int:
        if self.output.exists():
            with self.output.open("rb") as file:
                file.seek(self._read_to)
                while block := file.read(1 << 20):
                    self._lines += block.count(b"\n")
                    self._read_to += len(block)
        return self._lines

    def records(self) -> Iterator[Record]:
        with self.output.open(encoding="utf-8") as lines:
            for line in lines:
                found: dict[str, Any] = json.loads(line)
                yield Record(found["url"], found["status"], len(found["body"]), None)
