"""The runs of `crawl_spider.sh` and the crawler processes in them."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tools.deployment.deployment import SCRIPT, Deployment
from tools.deployment.processes import LEASH, Process, children

# Seconds since the epoch and the process stand first in a line, for tools.chaos.report to read.
LOG_FORMAT = "%(created).3f %(process)d %(asctime)s [%(name)s] %(levelname)s: %(message)s"
STOP_SECONDS = 60  # twice the default of SITE_STOP_GRACE_SECONDS
EXIT_UNAVAILABLE = 69
ITEM_SPIDER = ("-s", "chaos", "-s", "SPIDER_MODULES=tools.chaos.spider")  # of the script, and of Scrapy


@dataclass
class Run:
    """One `crawl_spider.sh`."""

    name: str
    log: Path
    size: int  # processes
    process: subprocess.Popen[bytes]
    crawlers: list[Process] = field(default_factory=list)  # every one it ever had, in order
    is_told_to_stop: bool = False
    gave_up: bool = False  # a server was away when it began, and it said so

    def look(self) -> None:
        """Note crawlers that are new."""
        if self.process.poll() is None:
            for child in children(self.process.pid):
                if child not in self.crawlers and child.is_crawler():
                    self.crawlers.append(child)

    def terminate(self) -> None:
        """Ask it to stop, as an operator does."""
        self.is_told_to_stop = True
        self.process.send_signal(signal.SIGTERM)


@dataclass(frozen=True)
class Death:
    """One crawler that was killed."""

    run: Run
    crawler: Process
    when: float


class Crew:
    """All runs of one chaos."""

    def __init__(
        self, deployment: Deployment, concurrency: int, redirected: Mapping[str, str], *, yields_items: bool
    ) -> None:
        self._deployment = deployment
        self._concurrency = concurrency
        self._redirected = redirected  # settings by which the crawlers reach the servers
        self._spider = ITEM_SPIDER if yields_items else ()
        self.runs: list[Run] = []

    def start(self, size: int) -> Run:
        """One more run with so many processes."""
        name = f"run-{len(self.runs) + 1}"
        log = self._deployment.folder / f"{name}.log"
        command = [str(SCRIPT), "-n", str(size), "-c", str(self._concurrency), *self._spider[:2]]
        with log.open("wb") as stream:
            process = subprocess.Popen(
                [*LEASH, *command, "--", "-s", f"LOG_FORMAT={LOG_FORMAT}", *self._spider[2:]],
                env=self._deployment.environment(**self._redirected),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.runs.append(Run(name, log, size, process))
        return self.runs[-1]

    def start_all(self, count: int) -> None:
        """So many processes: one run of two or more where there are many, the others alone."""
        together = count // 2 if count >= 4 else 1
        for size in [together, *[1] * (count - together)]:
            self.start(size)

    def look(self) -> list[Run]:
        """Note new crawlers; as a service manager, replace runs that gave up because a server was away."""
        for run in self.runs:
            run.look()
        ended = [
            run
            for run in self.runs
            if not (run.is_told_to_stop or run.gave_up) and run.process.poll() == EXIT_UNAVAILABLE
        ]
        for run in ended:
            run.gave_up = True
            self.start(run.size)
        return ended

    def working(self) -> list[Run]:
        """The runs that are to go on."""
        return [run for run in self.runs if not run.is_told_to_stop and run.process.poll() is None]

    def crawlers(self) -> list[tuple[Run, Process]]:
        """The living crawlers of those runs."""
        return [(run, crawler) for run in self.working() for crawler in run.crawlers if crawler.lives()]

    def stop(self) -> list[str]:
        """Stop all gracefully; what is wrong with their ends, a line each."""
        for run in self.working():
            run.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while any(run.process.poll() is None for run in self.runs) and time.monotonic() < deadline:
            time.sleep(0.1)
        codes = {run.name: run.process.poll() for run in self.runs if not run.gave_up}
        return [f"{name} ended with {code}, not with 0" for name, code in codes.items() if code != 0]

    def end(self) -> None:
        """Whatever state they are in, leave nothing behind: the scripts first, or they would start more."""
        for run in self.runs:
            run.look()
            if run.process.poll() is None:
                run.process.send_signal(signal.SIGSTOP)
                left = children(run.process.pid)
                run.process.kill()
                run.process.wait()
                for child in left:
                    child.send(signal.SIGKILL)
            for crawler in run.crawlers:
                crawler.send(signal.SIGKILL)
