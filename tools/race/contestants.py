"""Who takes part, by the name that `--peers` knows: this project, and the others."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from shutil import which
from typing import ClassVar
from urllib.parse import urlsplit

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # not in its stubs
from redis import Redis

from tools.chaos.crew import Process, is_crawler
from tools.deployment.deployment import SCRIPT, Deployment
from tools.race.contestant import CONCURRENCY, PER_HOST, Contestant, FileContestant, Heat, HeatFailed, Record
from tools.race.track import ROOT
from tools.race.workload import Workload

PEERS = Path(__file__).with_name("peers")
ENVIRONMENTS = ROOT / ".servers" / "bench"


def environment(requirements: str) -> Path:
    """Where the programs of an environment are that has exactly what that file names."""
    return ENVIRONMENTS / requirements.removesuffix(".txt") / "bin"


class ToolchainMissing(RuntimeError):
    """No compiler: says where it was looked for and what to install."""


@dataclass(frozen=True)
class Toolchain:
    """A compiler; `{sources}` and `{folder}` in its arguments are those of a build."""

    name: str
    program: str
    place: str  # where its installer puts it, whether PATH has it or not; may begin with ~
    arguments: tuple[str, ...]
    remedy: str
    variables: Mapping[str, str] = field(default_factory=dict)

    def find(self, purpose: str) -> Path:
        """PATH comes first. Raises ToolchainMissing."""
        if found := which(self.program) or which(os.path.expanduser(self.place)):  # noqa: PTH111 # which raises without a home
            return Path(found)
        raise ToolchainMissing(
            f"{purpose} needs {self.name}, but {self.program} is neither in PATH nor at {self.place}: "
            f"{self.remedy}"
        )


@dataclass(frozen=True)
class Build:
    """One program: the folder of its sources, and the folder that has all that is made of them."""

    toolchain: Toolchain
    sources: Path
    folder: Path
    program: Path

    def is_current(self) -> bool:
        """Whether the program is there and made of the sources as they are."""
        return self.program.exists() and self._note.exists() and self._note.read_text() == self._digest()

    def run(self, compiler: Path, say: Callable[[str], None]) -> None:
        """Raises CalledProcessError. After a failure the program does not count as current."""
        say(f"building {self.program}: this can take minutes")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._note.unlink(missing_ok=True)
        digest = self._digest()
        places = {"sources": self.sources, "folder": self.folder}
        path = f"{compiler.parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        subprocess.run(
            [str(compiler), *(argument.format_map(places) for argument in self.toolchain.arguments)],
            env=os.environ | {"PATH": path} | dict(self.toolchain.variables),
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=sys.stderr,
        )
        self._note.write_text(digest)

    @property
    def _note(self) -> Path:
        """What the program was made of."""
        return self.folder / "sources.sha256"

    def _digest(self) -> str:
        digest = hashlib.sha256(repr(self.toolchain.arguments).encode())
        for file in sorted(path for path in self.sources.rglob("*") if path.is_file()):
            name = file.relative_to(self.sources)
            if name.parts[0] != "target":  # what cargo leaves there when it is run by hand
                content = file.read_bytes()
                digest.update(f"{name} {len(content)}\n".encode() + content)
        return digest.hexdigest()


def bring_up_to_date(builds: Mapping[str, Build], say: Callable[[str], None]) -> None:
    """Builds, by the names of their contestants. No build begins while the compiler of another is missing."""
    stale = {name: build for name, build in builds.items() if not build.is_current()}
    compilers = {name: build.toolchain.find(f"--peers {name}") for name, build in stale.items()}
    for name, build in stale.items():
        build.run(compilers[name], say)


GO = Toolchain(
    name="Go",
    program="go",
    place="/usr/local/go/bin/go",
    arguments=("build", "-C", "{sources}", "-trimpath", "-buildvcs=false", "-o", "{folder}/program", "."),
    remedy="install Go 1.24 or newer (go.dev/doc/install, or the package golang-go of Debian 13)",
    variables={"CGO_ENABLED": "0"},  # pure Go needs no C compiler
)
RUST = Toolchain(
    name="Rust",
    program="cargo",
    place="~/.cargo/bin/cargo",
    arguments=(
        *("build", "--release", "--locked"),
        *("--manifest-path", "{sources}/Cargo.toml", "--target-dir", "{folder}"),
    ),
    remedy="install Rust 1.88 or newer (rustup.rs) and a C compiler",
)


def build(name: str, toolchain: Toolchain, program: str) -> Build:
    """Of the sources in `peers/name`."""
    folder = ENVIRONMENTS / name
    return Build(toolchain, PEERS / name, folder, folder / program)


class Compiled(FileContestant):
    """A program in another language, with the same work and limits."""

    build: ClassVar[Build]

    def command(self) -> list[str]:
        return [
            str(self.build.program),
            *("--seeds", str(self.heat.folder / "seeds.txt")),
            *("--output", str(self.output)),
            *("--concurrency", str(CONCURRENCY)),
            *("--per-host", str(PER_HOST)),
        ]


class InGo(Compiled):
    """Has one thread that runs goroutines: it has one core."""

    def command(self) -> list[str]:
        return [*super().command(), *(["--extract"] if self.heat.workload.extracts else [])]

    def environment(self) -> dict[str, str]:
        return super().environment() | {"GOMAXPROCS": "1"}


class Colly(InGo):
    """colly as its examples have it."""

    name = "colly"
    build = build("colly", GO, "program")


class BareGo(InGo):
    """The limit in Go."""

    name = "bare Go loop"
    build = build("bare_go", GO, "program")


class Spider(Compiled):
    """spider, with a `Website` for each host; it looks for links in every page."""

    name = "spider"
    build = build("spider", RUST, "release/spider-peer")


# What `scrapy startproject` writes, but for robots.txt and politeness, which nobody is to keep to here.
STOCK_SETTINGS = {
    "FEED_EXPORT_ENCODING": "utf-8",
    "ROBOTSTXT_OBEY": "False",
    "DOWNLOAD_DELAY": "0",
    "CONCURRENT_REQUESTS": str(CONCURRENCY),
    "CONCURRENT_REQUESTS_PER_DOMAIN": str(PER_HOST),
}


def settings_options(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]


class Stock(FileContestant):
    """Scrapy as it comes, in the version that this project has."""

    name = "Scrapy"
    spider = "page_spider.py"
    more_settings: ClassVar[dict[str, str]] = {}

    def command(self) -> list[str]:
        return [
            str(Path(sys.executable).with_name("scrapy")),
            "runspider",
            str(PEERS / self.spider),
            *("-a", f"seeds={self.heat.folder / 'seeds.txt'}"),
            *("-a", f"extract={'1' if self.heat.workload.extracts else ''}"),
            *("-O", f"{self.output}:jsonlines"),
            *settings_options(STOCK_SETTINGS | self.more_settings),
        ]


class QuietStock(Stock):
    """The same without a log line for each request and each item."""

    name = "Scrapy, LOG_LEVEL=INFO"
    more_settings: ClassVar[dict[str, str]] = {"LOG_LEVEL": "INFO"}


class Bare(FileContestant):
    """The limit."""

    name = "bare aiohttp loop"

    def command(self) -> list[str]:
        return [
            sys.executable,
            str(PEERS / "bare.py"),
            *("--seeds", str(self.heat.folder / "seeds.txt")),
            *("--output", str(self.output)),
            *("--concurrency", str(CONCURRENCY)),
            *(["--extract"] if self.heat.workload.extracts else []),
        ]


class ScrapyRedis(Stock):
    """Scrapy with scrapy-redis: seeds, queue and dupefilter in Redis."""

    name = "scrapy-redis"
    requirements = "scrapy-redis.txt"
    stops_itself = False  # it waits for more seeds
    holds_back = True
    more_settings: ClassVar[dict[str, str]] = {
        "SCHEDULER": "scrapy_redis.scheduler.Scheduler",
        "DUPEFILTER_CLASS": "scrapy_redis.dupefilter.RFPDupeFilter",
    }

    def prepare(self) -> None:
        with Redis.from_url(self.variables["SITE_REDIS_URL"]) as client:
            client.flushall()
            seeds = [json.dumps({"url": url}) for url in self.heat.seeds]
            client.rpush("pages:start_urls", *seeds)

    def command(self) -> list[str]:
        return [
            str(environment(self.requirements) / "scrapy"),
            "runspider",
            str(PEERS / "redis_spider.py"),
            *("-a", f"extract={'1' if self.heat.workload.extracts else ''}"),
            *("-O", f"{self.output}:jsonlines"),
            *settings_options(STOCK_SETTINGS | self.more_settings),
            *("-s", f"REDIS_URL={self.variables['SITE_REDIS_URL']}"),
        ]


class Crawlee(FileContestant):
    """crawlee-python as its guide has it: ParselCrawler and `enqueue_links`."""

    name = "crawlee-python"
    requirements = "crawlee.txt"
    way: ClassVar[list[str]] = []

    def command(self) -> list[str]:
        return [
            str(environment(self.requirements) / "python"),
            str(PEERS / "http_crawl.py"),
            *self.way,
            *("--seeds", str(self.heat.folder / "seeds.txt")),
            *("--output", str(self.output)),
            *("--concurrency", str(CONCURRENCY)),
            *(["--extract"] if self.heat.workload.extracts else []),
        ]


class LeanCrawlee(Crawlee):
    """The same with links by lxml and a set of our own: only new links reach its queue."""

    name = "crawlee-python, own links"
    way: ClassVar[list[str]] = ["--lean"]

    @classmethod
    def takes_part(cls, workload: Workload) -> bool:
        """Without links it is the same."""
        return workload.extracts


PARTITIONS = 16
PRODUCED_TOGETHER = 100_000  # seeds, of which the last is acknowledged before there are more


class Ours(Contestant):
    """Results go to a Kafka topic, which notes when the broker has them."""

    name = "site_spider"
    writes = "Kafka topic, acknowledged"
    processes = 1

    def __init__(self, heat: Heat) -> None:
        super().__init__(heat)
        self._deployment = Deployment(heat.folder, dict(self.variables))
        self._results = f"{self._deployment.topic}.results"
        self._deployment.settings |= {
            "SITE_SINKS": "kafka",
            "SITE_RESULTS_TOPIC": self._results,
            "SITE_STATS_INTERVAL_SECONDS": "10",
            "CONCURRENT_REQUESTS_PER_DOMAIN": str(PER_HOST),
            "DEPTH_LIMIT": "0",
        }
        self._consumer = Consumer(
            {
                "bootstrap.servers": self.variables["SITE_KAFKA_BROKERS"],
                "group.id": f"{self._deployment.group}.bench",
                "enable.auto.commit": False,
            }
        )

    def prepare(self) -> None:
        self.make_topics()
        self.produce()

    def make_topics(self) -> None:
        """Of the results' topic the broker notes when it has a record: the time of acknowledgement."""
        admin = AdminClient({"bootstrap.servers": self.variables["SITE_KAFKA_BROKERS"]})
        results_options = {"message.timestamp.type": "LogAppendTime"}
        made = admin.create_topics(
            [
                NewTopic(self._deployment.topic, PARTITIONS, 1),
                NewTopic(self._results, PARTITIONS, 1, config=results_options),
            ]
        )
        for topic in made.values():
            topic.result()

    def produce(self) -> None:
        """Put all seeds on the topic, as a producer of seeds would: keyed by host."""
        seeds = self.heat.seeds
        for first in range(0, len(seeds), PRODUCED_TOGETHER):
            together = seeds[first : first + PRODUCED_TOGETHER]
            self._deployment.produce([self._message(url) for url in together])

    def _message(self, url: str) -> tuple[bytes, bytes]:
        meta = {} if self.heat.workload.extracts else {"NotExtract": True}
        return (urlsplit(url).hostname or "").encode(), json.dumps({"url": url, "meta": meta}).encode()

    def command(self) -> list[str]:
        options = ["-n", str(self.processes), "-c", str(CONCURRENCY), "--until-done"]
        return [str(SCRIPT), *options]

    def environment(self) -> dict[str, str]:
        return super().environment() | self._deployment.settings

    def counts(self, process: Process) -> bool:
        """The crawlers. The script and its watcher cost the same for one page and for a million."""
        return is_crawler(process)

    def recorded(self) -> int:
        marks = [
            self._consumer.get_watermark_offsets(TopicPartition(self._results, number), timeout=10)
            for number in range(PARTITIONS)
        ]
        return sum(end - first for first, end in marks)

    def records(self) -> Iterator[Record]:
        left = self.recorded()
        self._consumer.assign([TopicPartition(self._results, number, 0) for number in range(PARTITIONS)])
        while left:
            for message in self._consumer.consume(min(left, 500), timeout=10):
                left -= 1
                found = json.loads(message.value() or b"")
                _, milliseconds = message.timestamp()
                if found["body"] is None:
                    raise RuntimeError(f"{found['url']} has no page: {found['description']}")
                yield Record(found["url"], found["status"], len(found["body"]), milliseconds / 1000)

    def close(self) -> None:
        admin = AdminClient({"bootstrap.servers": self.variables["SITE_KAFKA_BROKERS"]})
        for topic in admin.delete_topics([self._deployment.topic, self._results]).values():
            topic.result()
        self._consumer.close()
        self._deployment.close()


class Pair(Ours):
    """Two members of a group. They have their partitions before there are seeds: nothing is done twice."""

    name = "site_spider -n 2"
    stops_itself = False
    processes = 2
    _SETTLED_SECONDS = 3.0

    def prepare(self) -> None:
        self.make_topics()

    def command(self) -> list[str]:
        return [str(SCRIPT), "-n", str(self.processes), "-c", str(CONCURRENCY)]

    def started(self, log: Path, process: subprocess.Popen[bytes]) -> None:
        """Produce the seeds when each member has said what it owns."""
        deadline = time.monotonic() + 60
        while log.read_text(errors="replace").count("Assigned: ") < self.processes:
            if process.poll() is not None or time.monotonic() > deadline:
                raise HeatFailed(f"no {self.processes} members: {log.read_text(errors='replace')[-1500:]}")
            time.sleep(0.1)
        time.sleep(self._SETTLED_SECONDS)
        self.produce()


class Single(Pair):
    """One member, treated in the same way."""

    name = "site_spider -n 1"
    processes = 1


@dataclass(frozen=True)
class Entry:
    """One contestant."""

    kind: type[Contestant]
    servers: tuple[str, ...] = ()


CONTESTANTS: Mapping[str, Entry] = {
    "ours": Entry(Ours, ("kafka",)),
    "stock": Entry(Stock),
    "stock-quiet": Entry(QuietStock),
    "scrapy-redis": Entry(ScrapyRedis, ("redis",)),
    "crawlee": Entry(Crawlee),
    "crawlee-lean": Entry(LeanCrawlee),
    "bare": Entry(Bare),
    "colly": Entry(Colly),
    "spider": Entry(Spider),
    "go": Entry(BareGo),
    "single": Entry(Single, ("kafka",)),
    "pair": Entry(Pair, ("kafka",)),
}
PAIR = ("single", "pair")
RACERS = ("ours", "stock", "stock-quiet", "scrapy-redis", "crawlee", "crawlee-lean", "bare")
BASE = "stock"  # whose CPU is divided by the others', for the ratio
