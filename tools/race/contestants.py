"""Who takes part, by the name that `--peers` knows: a command, and a place where its records come out."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from shutil import which
from typing import Any, ClassVar, NamedTuple
from urllib.parse import urlsplit

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # not in its stubs

from hatch_build import compiled_folder
from tools.deployment.deployment import ROOT, SCRIPT, Deployment
from tools.deployment.processes import Process
from tools.race.site import Track
from tools.race.workload import Workload

CONCURRENCY = 32  # downloads at a time, of everybody
PER_HOST = 8  # of one host, where a contestant knows such a limit
PEERS = Path(__file__).with_name("peers")
BUILDS = ROOT / ".servers" / "bench"


class HeatFailed(Exception):
    """A contestant did not do the work; the message says what was missing."""


class Record(NamedTuple):
    """One page in the output."""

    url: str
    status: int
    body_characters: int


@dataclass(frozen=True)
class Heat:
    """One contestant's turn at one workload, in a folder of its own."""

    workload: Workload
    folder: Path
    track: Track
    brokers: str = ""  # of Kafka, where somebody needs it

    @property
    def seeds(self) -> list[str]:
        return list(self.workload.seed_urls(self.track.port(self.workload)))


class Contestant(ABC):
    """One turn; made anew for each."""

    name: str
    writes: str  # what and where, for the reader of the table
    needs_kafka = False
    stops_itself = True  # when all is done; the others are sent SIGTERM

    def __init__(self, heat: Heat) -> None:
        self.heat = heat

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
        self.seed_file, self.output = heat.folder / "seeds.txt", heat.folder / "output.jsonl"
        self._read_to = self._lines = 0

    def prepare(self) -> None:
        self.seed_file.write_text("".join(f"{url}\n" for url in self.heat.seeds))

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
                yield Record(found["url"], found["status"], len(found["body"]))


class Stock(FileContestant):
    """Scrapy as it comes, in the version that this project has, with what `scrapy startproject` writes.

    But for robots.txt and politeness, which nobody is to keep to here.
    """

    name = "Scrapy"

    def command(self) -> list[str]:
        settings = (
            *("FEED_EXPORT_ENCODING=utf-8", "ROBOTSTXT_OBEY=False", "DOWNLOAD_DELAY=0"),
            f"CONCURRENT_REQUESTS={CONCURRENCY}",
            f"CONCURRENT_REQUESTS_PER_DOMAIN={PER_HOST}",
        )
        return [
            *(str(Path(sys.executable).with_name("scrapy")), "runspider", str(PEERS / "page_spider.py")),
            *("-a", f"seeds={self.seed_file}"),
            *("-a", f"extract={'1' if self.heat.workload.extracts else ''}"),
            *("-O", f"{self.output}:jsonlines"),
            *(word for setting in settings for word in ("-s", setting)),
        ]


class ToolchainMissing(RuntimeError):
    """No compiler: says where it was looked for and what to install."""


_PLACES = ("/usr/local/go/bin", "~/.cargo/bin")  # where installers put them, whether PATH has them or not
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), *map(os.path.expanduser, _PLACES)])


class Toolchain(NamedTuple):
    """A compiler; `{sources}` and `{folder}` in its command are those of a build."""

    name: str
    command: str
    remedy: str

    def check(self, purpose: str) -> None:
        """Raise ToolchainMissing unless it is there."""
        program = self.command.split()[0]
        if which(program, path=PATH) is None:
            raise ToolchainMissing(
                f"{purpose} needs {self.name}, but {program} is neither in PATH nor in "
                f"{' or '.join(_PLACES)}: {self.remedy}"
            )


GO = Toolchain(
    "Go",
    "go build -C {sources} -trimpath -buildvcs=false -o {folder}/program .",
    "install Go 1.24 or newer (go.dev/doc/install, or the package golang-go of Debian 13)",
)
RUST = Toolchain(
    "Rust",
    "cargo build --release --locked --manifest-path {sources}/Cargo.toml --target-dir {folder}",
    "install Rust 1.88 or newer (rustup.rs) and a C compiler",
)


class Compiled(FileContestant):
    """A program in another language, with the same work and limits."""

    toolchain: ClassVar[Toolchain]
    sources: ClassVar[Path]
    program: ClassVar[str] = "program"  # below the folder of the build

    @classmethod
    def folder(cls) -> Path:
        """Has all that is made of the sources."""
        return BUILDS / cls.sources.name

    @classmethod
    def build(cls) -> None:
        """The compiler sees for itself what has changed. Raises CalledProcessError."""
        places = {"sources": cls.sources, "folder": cls.folder()}
        subprocess.run(
            [word.format_map(places) for word in cls.toolchain.command.split()],
            env=os.environ | {"PATH": PATH, "CGO_ENABLED": "0"},  # pure Go needs no C compiler
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )

    def command(self) -> list[str]:
        files = ("--seeds", str(self.seed_file), "--output", str(self.output))
        limits = ("--concurrency", str(CONCURRENCY), "--per-host", str(PER_HOST))
        return [str(self.folder() / self.program), *files, *limits]


class Colly(Compiled):
    """colly as its examples have it. In Go: one thread runs goroutines, so it has one core."""

    name = "colly"
    toolchain = GO
    sources = PEERS / "colly"

    def command(self) -> list[str]:
        return [*super().command(), *(["--extract"] if self.heat.workload.extracts else [])]

    def environment(self) -> dict[str, str]:
        return super().environment() | {"GOMAXPROCS": "1"}


class BareGo(Colly):
    """The limit: a loop, a set and a file. No queue, no retry, no promise."""

    name = "bare Go loop"
    sources = PEERS / "bare_go"


class Spider(Compiled):
    """spider, with a `Website` for each host; it looks for links in every page."""

    name = "spider"
    toolchain = RUST
    sources = PEERS / "spider"
    program = "release/spider-peer"


PARTITIONS = 16
PRODUCED_TOGETHER = 100_000  # seeds, of which the last is acknowledged before there are more


class Ours(Contestant):
    """Results go to a Kafka topic."""

    name = "site_spider"
    writes = "Kafka topic, acknowledged"
    needs_kafka = True
    processes = 1

    def __init__(self, heat: Heat) -> None:
        super().__init__(heat)
        self._deployment = Deployment(heat.folder, {"SITE_KAFKA_BROKERS": heat.brokers})
        self._results = f"{self._deployment.topic}.results"
        self._deployment.settings |= {
            "SITE_SINKS": "kafka",
            "SITE_RESULTS_TOPIC": self._results,
            "SITE_STATS_INTERVAL_SECONDS": "10",
            "CONCURRENT_REQUESTS_PER_DOMAIN": str(PER_HOST),
            "DEPTH_LIMIT": "0",
        }
        self._admin = AdminClient({"bootstrap.servers": heat.brokers})
        group = {"group.id": f"{self._deployment.group}.bench", "enable.auto.commit": False}
        self._consumer = Consumer({"bootstrap.servers": heat.brokers, **group})

    def prepare(self) -> None:
        self.make_topics()
        self.produce()

    def make_topics(self) -> None:
        wanted = [NewTopic(name, PARTITIONS, 1) for name in (self._deployment.topic, self._results)]
        for topic in self._admin.create_topics(wanted).values():
            topic.result()

    def produce(self) -> None:
        """Put all seeds on the topic, as a producer of seeds would: keyed by host."""
        meta = {} if self.heat.workload.extracts else {"NotExtract": True}
        seeds = [
            ((urlsplit(url).hostname or "").encode(), json.dumps({"url": url, "meta": meta}).encode())
            for url in self.heat.seeds
        ]
        for first in range(0, len(seeds), PRODUCED_TOGETHER):
            self._deployment.produce(seeds[first : first + PRODUCED_TOGETHER])

    def command(self) -> list[str]:
        until_done = ["--until-done"] if self.stops_itself else []
        return [str(SCRIPT), "-n", str(self.processes), "-c", str(CONCURRENCY), *until_done]

    def environment(self) -> dict[str, str]:
        return super().environment() | self._deployment.settings

    def counts(self, process: Process) -> bool:
        """The crawlers. The script and its watcher cost the same for one page and for a million."""
        return process.is_crawler()

    def recorded(self) -> int:
        places = (TopicPartition(self._results, number) for number in range(PARTITIONS))
        marks = [self._consumer.get_watermark_offsets(place, timeout=10) for place in places]
        return sum(end - first for first, end in marks)

    def records(self) -> Iterator[Record]:
        left = self.recorded()
        self._consumer.assign([TopicPartition(self._results, number, 0) for number in range(PARTITIONS)])
        while left:
            for message in self._consumer.consume(min(left, 500), timeout=10):
                left -= 1
                found = json.loads(message.value() or b"")
                if found["body"] is None:
                    raise HeatFailed(f"{found['url']} has no page: {found['description']}")
                yield Record(found["url"], found["status"], len(found["body"]))

    def close(self) -> None:
        for topic in self._admin.delete_topics([self._deployment.topic, self._results]).values():
            topic.result()
        self._consumer.close()
        self._deployment.close()


class Native(Ours):
    """The same sources, with modules compiled."""

    name = "site_spider compiled"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"PYTHONPATH": str(compiled_folder())}


class Archiving(Ours):
    """With WARC files beside the results."""

    name = "site_spider with warc"

    def environment(self) -> dict[str, str]:
        return super().environment() | {"SITE_SINKS": "kafka,warc", "SITE_WARC_DIR": str(self.heat.folder / "warc")}


class Single(Ours):
    """Has its partitions before there are seeds: of two members nothing is done twice."""

    name = "site_spider -n 1"
    stops_itself = False
    _SETTLED_SECONDS = 3.0

    def prepare(self) -> None:
        self.make_topics()

    def started(self, log: Path, process: subprocess.Popen[bytes]) -> None:
        """Produce the seeds when each member has said what it owns."""
        deadline = time.monotonic() + 60
        while log.read_text(errors="replace").count("Assigned: ") < self.processes:
            if process.poll() is not None or time.monotonic() > deadline:
                raise HeatFailed(f"no {self.processes} members: {log.read_text(errors='replace')[-1500:]}")
            time.sleep(0.1)
        time.sleep(self._SETTLED_SECONDS)
        self.produce()


class Pair(Single):
    """Two members of a group."""

    name = "site_spider -n 2"
    processes = 2


CONTESTANTS: Mapping[str, type[Contestant]] = {
    "ours": Ours,
    "compiled": Native,
    "warc": Archiving,
    "stock": Stock,
    "colly": Colly,
    "spider": Spider,
    "go": BareGo,
    "single": Single,
    "pair": Pair,
}
PAIR = ("single", "pair")
RACERS = ("ours", "stock")
BASE = "stock"  # whose CPU is divided by the others', for the ratio
