"""The runs of `crawl_spider.sh` and the crawler processes in them."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import NamedTuple

from tools.deployment.deployment import Deployment, Run
from tools.deployment.processes import LEASH, Process, children

# Seconds since the epoch and the process stand first in a line, for tools.chaos.report to read.
LOG_FORMAT = "%(created).3f %(process)d %(asctime)s [%(name)s] %(levelname)s: %(message)s"
STOP_SECONDS = 60  # twice the default of SITE_STOP_GRACE_SECONDS
EXIT_UNAVAILABLE = 69
ITEM_SPIDER = ("-s", "chaos", "-s", "SPIDER_MODULES=tools.chaos.pages")  # of the script, and of Scrapy


class ChaosRun(Run):
    """One `crawl_spider.sh`."""

    def __init__(
        self, name: str, size: int, deployment: Deployment, arguments: list[str], ways: Mapping[str, str]
    ) -> None:
        log, environment = deployment.folder / f"{name}.log", deployment.environment(**ways)
        super().__init__(log, environment, ["-n", str(size), *arguments], leash=LEASH)
        self.name = name
        self.size = size  # processes
        self.crawlers: list[Process] = []  # every one it ever had, in order
        self.is_told_to_stop = False
        self.gave_up = False  # a server was away when it began, and it said so

    def look(self) -> None:
        """Note crawlers that are new."""
        if self.process.poll() is None:
            for child in children(self.process.pid):
                if child not in self.crawlers and child.is_crawler():
                    self.crawlers.append(child)

    def terminate(self) -> None:
        """Ask it to stop, as an operator does."""
        self.is_told_to_stop = True
        super().terminate()

    def end(self) -> None:
        """At once, and its crawlers with it."""
        self.look()
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for crawler in self.crawlers:
            crawler.send(signal.SIGKILL)


class Death(NamedTuple):
    """One crawler that was killed."""

    run: ChaosRun
    crawler: Process
    when: float


class Crew:
    """All runs of one chaos."""

    def __init__(
        self, deployment: Deployment, concurrency: int, ways: Mapping[str, str], *, yields_items: bool
    ) -> None:
        self.runs: list[ChaosRun] = []
        self._deployment = deployment
        self._ways = ways  # settings by which the crawlers reach the servers
        spider = ITEM_SPIDER if yields_items else ()
        log_format = ("--", "-s", f"LOG_FORMAT={LOG_FORMAT}")
        self._arguments = ["-c", str(concurrency), *spider[:2], *log_format, *spider[2:]]

    def start(self, size: int) -> ChaosRun:
        """One more run with so many processes."""
        name = f"run-{len(self.runs) + 1}"
        self.runs.append(ChaosRun(name, size, self._deployment, self._arguments, self._ways))
        return self.runs[-1]

    def start_all(self, count: int) -> None:
        """So many processes: one run of two or more where there are many, the others alone."""
        together = count // 2 if count >= 4 else 1
        for size in [together, *[1] * (count - together)]:
            self.start(size)

    def look(self) -> list[ChaosRun]:
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

    def working(self) -> list[ChaosRun]:
        """The runs that are to go on."""
        return [run for run in self.runs if not run.is_told_to_stop and run.process.poll() is None]

    def crawlers(self) -> list[tuple[ChaosRun, Process]]:
        """The living crawlers of those runs."""
        return [(run, crawler) for run in self.working() for crawler in run.crawlers if crawler.lives()]

    def stop(self) -> list[str]:
        """Stop all gracefully; what is wrong with their ends, a line each."""
        for run in self.working():
            run.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while any(run.process.poll() is None for run in self.runs) and time.monotonic() < deadline:
            time.sleep(0.1)
        ends = [(run, run.process.poll()) for run in self.runs if not run.gave_up]
        return [
            f"{run.name} ended with {code}, not with 0"
            for run, code in ends
            if code != 0 and (run.crawlers or code != -signal.SIGTERM)  # it came before the script had begun
        ]

    def end(self) -> None:
        """Whatever state they are in, leave nothing behind."""
        for run in self.runs:
            run.end()
