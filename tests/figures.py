"""What a run costs: the table at its end, and the budget of tests/slow.toml that it keeps to.

The budget is in CPU time, of the tests and of what they start and wait for. Time by the clock depends on who
else uses the machine, so what is too slow by the clock alone is only said. CPU time depends on it too: it
doubles where others share the core and its caches. So the budget is for a machine that does a loop in the
time of slow.toml, and grows as that loop does, which is measured all along the run. Servers that
tests share are not counted: they are no children of the tests.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest

BUDGET = Path(__file__).with_name("slow.toml")
SHOWN = 15
MOST_NAMED = 30
TO_SPARE = 1.25
ALONE_TO_SPARE = 2.0  # for a single test, which may meet the busiest minute
_LOOP, _LOOP_EVERY = 20_000, 20  # entries, which do not stay in the first caches; tests
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn"}
_started = 0


def _count_starts(event: str, _arguments: object) -> None:
    global _started  # noqa: PLW0603  # a hook of the interpreter, which cannot be taken away
    if event in _STARTS:
        _started += 1


def _cpu_seconds() -> float:
    """Of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def _loop_ms() -> float:
    """CPU time of some work that is always the same."""
    began = time.thread_time()
    names = {number: str(number) for number in range(_LOOP)}
    assert sum(len(names[number * 7919 % _LOOP]) for number in range(_LOOP))
    return (time.thread_time() - began) * 1000


class Figures:
    """Measures in each worker, and adds up where the run is told."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._began = time.monotonic()
        self._last = (_cpu_seconds(), _started)
        self._workers_cpu_seconds = 0.0
        self._wall: Counter[str] = Counter()
        self._cpu: Counter[str] = Counter()
        self._starts: Counter[str] = Counter()
        self._loops_ms = [_loop_ms()]
        self._ended = 0
        self._faults: list[str] = []
        sys.addaudithook(_count_starts)

    def pytest_runtest_logstart(self) -> None:
        self._last = (_cpu_seconds(), _started)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        now = (_cpu_seconds(), _started)
        report.cpu_seconds, report.starts = now[0] - self._last[0], now[1] - self._last[1]
        if report.when == "teardown":
            self._ended += 1
            if self._ended % _LOOP_EVERY == 0 and self._config.getoption("figures"):
                self._loops_ms.append(_loop_ms())
        self._last = (_cpu_seconds(), _started)
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        name = without_group(report.nodeid)
        self._wall[name] += report.duration
        self._cpu[name] += getattr(report, "cpu_seconds", 0)  # of a worker that died there is none
        self._starts[name] += getattr(report, "starts", 0)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        told = getattr(node, "workeroutput", {})
        self._workers_cpu_seconds += told.get("cpu_seconds", 0.0)
        self._loops_ms += told.get("loops_ms", [])

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(self._config, "workeroutput"):
            self._config.workeroutput.update(cpu_seconds=_cpu_seconds(), loops_ms=self._loops_ms)
        elif self._config.getoption("figures"):
            self._faults = [*self._judged()]
            if self._faults and session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._config.getoption("figures"):
            terminalreporter.section("what it took")
            for line in [*self._table(), *self._faults]:
                terminalreporter.write_line(line)
            terminalreporter.write_line(f"all tests: {self._written()}")

    def _written(self) -> Path:
        rows = (
            f"{self._wall[name]:.1f}\t{self._cpu[name]:.1f}\t{self._starts[name]}\t{name}\n"
            for name, _ in self._cpu.most_common()
        )
        table = self._config.cache.mkdir("figures") / "tests.tsv"
        table.write_text("wall s\tCPU s\tstarts\ttest\n" + "".join(rows))
        return table

    def _total_cpu_seconds(self) -> float:
        """Workers are children, too: where there are some, these tell what they and their children took."""
        own, children = sum(os.times()[:2]), sum(os.times()[2:4])
        return own + (self._workers_cpu_seconds or children)

    def _table(self) -> Iterator[str]:
        minutes = (time.monotonic() - self._began) / 60
        yield f"wall {minutes:.1f} min, CPU {self._total_cpu_seconds() / 60:.1f} min (without shared servers)"
        yield f"the loop of slow.toml took {self._slowness():.2f} times as long as there"
        yield f"{len(self._wall)} tests, {self._starts.total()} process starts by workers"
        yield "     wall s   CPU s  starts"
        for name, seconds in self._wall.most_common(SHOWN):
            yield f"{seconds:11.1f} {self._cpu[name]:7.1f} {self._starts[name]:7}  {name}"
        seconds = _budget()["seconds"]
        by_clock = sum(self._wall[name] > seconds >= self._cpu[name] for name in self._wall)
        yield f"{by_clock} tests took over {seconds} s by the clock alone"

    def _slowness(self) -> float:
        return statistics.median(self._loops_ms) / float(_budget()["loop_ms"])

    def _judged(self) -> Iterator[str]:
        """What is beyond the budget, a line each."""
        budget = _budget()
        slowness = max(1.0, self._slowness())
        limit = budget["cpu_minutes"] * TO_SPARE * slowness
        if self._total_cpu_seconds() > limit * 60:
            yield f"FAILED: over the budget of {limit:.1f} min of CPU (see slow.toml)"
        named = budget["tests"].keys()
        if len(named) > MOST_NAMED:
            yield f"FAILED: slow.toml names {len(named)} tests, more than {MOST_NAMED}"
        for name in sorted(named - self._wall.keys() - {*map(_file_of, self._wall)}):
            yield f"FAILED: slow.toml names {name}, which is no test of this run"
        alone = budget["seconds"] * ALONE_TO_SPARE * slowness
        for name in sorted(self._wall):
            if named.isdisjoint({name, _file_of(name)}) and self._cpu[name] > alone:
                yield f"FAILED: {self._cpu[name]:.1f} s of CPU, and slow.toml has no reason for it: {name}"


def _budget() -> dict[str, Any]:
    return tomllib.loads(BUDGET.read_text(encoding="utf-8"))


def dearest() -> list[str]:
    """The tests and files that slow.toml names, in its order."""
    return [*_budget()["tests"]]


def _file_of(name: str) -> str:
    return name.partition("::")[0]


def without_group(nodeid: str) -> str:
    """pytest-xdist writes `@group` behind the parameters."""
    return nodeid.rpartition("@")[0] if nodeid.rfind("@") > nodeid.rfind("]") else nodeid
