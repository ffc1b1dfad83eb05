"""A plugin of pytest: the contract suite of seed logs runs over the simulated log, each test on its loop.

`python -m pytest -p tests.simulation.contracts tests/contracts/test_seed_log.py`
"""

from __future__ import annotations

import contextvars
import random
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

from tests.simulation.virtual import PROCESS, Machine, VirtualLoop, VirtualThread

import pytest
from _pytest.runner import runtestprotocol

from tests.contracts.seed_logs import PARTITIONS, Case
from tests.simulation.log import Broker, SimSeedLog


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """A test, its fixtures included, is a thread of the loop."""
    loop = Machine.loop = VirtualLoop(lambda: 0.001)
    ended = loop.create_future()
    process = SimpleNamespace(
        name="p1", member_name="", consumers=[], is_dead=False, is_frozen=False, is_late=False, kept=[],
        clock_error=0.0,
    )  # fmt: skip
    item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)

    def work() -> None:
        runtestprotocol(item, nextitem=nextitem)
        ended.set_result(None)

    context = contextvars.copy_context()
    context.run(PROCESS.set, process)
    context.run(VirtualThread, work)
    loop.run_until_complete(ended)
    loop._closed = True  # type: ignore[attr-defined]
    item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
    return True


@contextmanager
def simulated_case() -> Iterator[Case]:
    """As those of the other logs."""
    nobody: Any = lambda *_what: None  # noqa: E731
    truth = SimpleNamespace(appended=nobody, committing=nobody)
    world = SimpleNamespace(trace=nobody, truth=truth)
    SimSeedLog.broker = broker = Broker(random.Random(0), world, PARTITIONS)
    log = SimSeedLog()
    producer = log.producer()
    made = Case("simulated", log, partial(broker.topic), producer)
    yield made
    made.close()
    producer.close()
