"""A plugin of pytest: the contract suite of seed logs runs over the simulated log, each test on its loop.

`python -m pytest -p tests.simulation.contracts tests/contracts/test_seed_log.py`
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

from tests.simulation.virtual import PROCESS, VirtualLoop, VirtualThread

import pytest
from _pytest.runner import runtestprotocol

from tests.contracts.seed_logs import PARTITIONS, Case
from tests.simulation.log import Broker, SimSeedLog
from tests.simulation.world import Plan, Process, World


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool:
    """A test, its fixtures included, is a thread of the loop, in a process whose name is not static."""
    loop = VirtualLoop(lambda: 0.001)
    ended = loop.create_future()
    (plan := Plan(0)).network_seconds = 0.01
    world = World(plan)
    process = Process(world, 1, 1)
    process.member_name = ""
    SimSeedLog.broker = Broker(world.rng("network"), world, PARTITIONS)
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
    log = SimSeedLog()
    producer = log.producer()
    made = Case("simulated", log, partial(log.broker.topic), producer)
    yield made
    made.close()
    producer.close()
