"""What all tests share: production's event loop, and real servers."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings
from scrapy.utils.log import _uninstall_scrapy_root_handler, get_scrapy_root_handler
from xdist.workermanage import NodeManager

from tests.figures import Figures, dearest, without_group
from tests.in_process import virtual_time
from tests.leftovers import Leftovers, starts_processes
from tests.real_servers import address, begin_run, end_run, revivals, run_with_shared_servers

# `asyncio.run` and `asyncio.Runner` then make the loop that ASYNCIO_EVENT_LOOP names for real crawls;
# at import, because a fixture would come after those of wider scope
asyncio.set_event_loop_policy(uvloop.EventLoopPolicy())
gc.disable()  # until all modules are there

# an example may take 0.2 s by default, which a busy machine turns into a failure
PATIENT = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # machines may stand still
settings.register_profile("project", PATIENT, max_examples=25)
settings.register_profile("quick", PATIENT, max_examples=8)
settings.register_profile("nightly", PATIENT, max_examples=2_000)

DEAREST_TIMEOUT_SECONDS = 1800  # of slow.toml and the night; others have what test.sh gives them
LONGEST_VALUE = 200
ACCEPTANCE = Path(__file__).with_name("acceptance")
_LEFT_OUT = re.compile(r"^pytestmark = .*mark\.(?:servers|nightly)\b", re.MULTILINE)
SERVERS = {"elasticsearch_hosts", "hbase_address", "redis_url", "kafka_brokers"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--nightly", action="store_true", help="run the tests marked nightly, and many examples of properties"
    )
    parser.addoption("--quick", action="store_true", help="run the tests that need no server and start no process")
    parser.addoption("--figures", action="store_true", help="print what the run took, and keep it to tests/slow.toml")


def pytest_configure(config: pytest.Config) -> None:
    settings.load_profile(next((name for name in ("nightly", "quick") if config.getoption(name)), "project"))
    if not hasattr(config, "workerinput"):
        NodeManager.EXIT_TIMEOUT = 60.0  # after Ctrl-C fixtures of workers stop what they have started
        begin_run()
        config.add_cleanup(end_run)
    config.pluginmanager.register(Leftovers(compares=not config.getoption("quick")))
    config.pluginmanager.register(Figures(config))


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Left to the night: what takes long, and many examples of properties. Left out by --quick: see there."""
    is_night = bool(config.getoption("nightly"))
    chosen, left_out = [], []
    for item in items:
        nightly = item.get_closest_marker("nightly") is not None
        nightly = nightly or (is_night and item.get_closest_marker("hypothesis") is not None)
        wanted = nightly == is_night
        if config.getoption("quick"):
            wanted = wanted and not _needs_server(item) and not starts_processes(item)
        (chosen if wanted else left_out).append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
    names = {name: place for place, name in enumerate(dearest())}
    places = {item: _place(item, names) for item in chosen}
    for item, place in places.items():
        if (is_night or place < len(names)) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(DEAREST_TIMEOUT_SECONDS))
    items[:] = sorted(chosen, key=places.__getitem__)


def _place(item: pytest.Item, places: Mapping[str, int]) -> int:
    """What takes longest comes first, so that workers end together: xdist hands out in this order."""
    nodeid = without_group(item.nodeid)
    place = places.get(nodeid, places.get(nodeid.partition("::")[0]))
    if place is None:
        return len(places) + (0 if _needs_server(item) else 1 if starts_processes(item) else 2)
    return place


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A quick run does not import what it would leave out as a whole: real servers and processes."""
    if not config.getoption("quick"):
        return None
    if collection_path.suffix == ".py":
        return bool(_LEFT_OUT.search(collection_path.read_text(encoding="utf-8"))) or None
    return collection_path == ACCEPTANCE or None


def _needs_server(item: pytest.Item) -> bool:
    return item.get_closest_marker("servers") is not None or not SERVERS.isdisjoint(_fixtures(item))


def _fixtures(item: pytest.Item) -> dict[str, Sequence[pytest.FixtureDef[Any]]]:
    return item._fixtureinfo.name2fixturedefs if isinstance(item, pytest.Function) else {}


def pytest_collection_finish() -> None:
    """All modules stay: to look for garbage among them took a tenth of the CPU."""
    gc.freeze()
    gc.set_threshold(100_000, 10, 10)  # a crawl makes many objects, which are looked through time and again else
    gc.enable()


def pytest_make_parametrize_id(val: object) -> str | None:
    """Of a long value its beginning: ids of 20 MB go to and from each worker, and cost it a gigabyte."""
    if isinstance(val, str | bytes) and len(val) > LONGEST_VALUE:
        return f"{val[:40]!a} of {len(val)}"
    return None


def pytest_itemcollected(item: pytest.Item) -> None:
    """One worker takes all tests of a module that share a fixture, which then is made once."""
    module = item.nodeid.partition("::")[0]
    shared = any(
        found[-1].scope not in {"function", "session"} or (found[-1].scope, found[-1].baseid) == ("session", module)
        for found in _fixtures(item).values()
    )
    if shared and item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(module))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """A test that is a coroutine runs in a loop of its own, or as `run_test` of its module does it."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    getattr(pyfuncitem.module, "run_test", asyncio.run)(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Tests with real servers are repeated when a server had died."""
    if item.get_closest_marker("servers") is None:
        return None
    run_with_shared_servers(item, nextitem)
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which servers had died."""
    for line in revivals():
        terminalreporter.write_line(line)


@pytest.fixture
def threads_take_turns_often() -> Iterator[None]:
    """So that what is not safe between threads fails within a second."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.fixture(autouse=True)
def _real_time() -> Iterator[None]:
    """What a test has jumped over is not told to the next one, nor what its site answered."""
    yield
    virtual_time.reset()
    if engine := sys.modules.get("tests.in_process.engine"):
        engine.ANSWERS.clear()


@pytest.fixture(autouse=True)
def _processes_hear_soon(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a task that goes on: who puts back what was parked waits for them, in real time before a crawl."""
    if not _needs_server(request.node) and not starts_processes(request.node):
        monkeypatch.setattr("site_spider.tasks.returning._HEARD_SECONDS", 0.1)


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs within this process sets up logging, which each later crawl would do again."""
    root = logging.getLogger()
    level = root.level
    yield
    if get_scrapy_root_handler() is not None:
        _uninstall_scrapy_root_handler()
    root.setLevel(level)


@pytest.fixture(scope="session")
def elasticsearch_hosts() -> Iterator[str]:
    """The value of SITE_ELASTICSEARCH_HOSTS."""
    yield from address("SITE_ELASTICSEARCH_HOSTS", "elasticsearch")


@pytest.fixture(scope="session")
def hbase_address() -> Iterator[str]:
    """The values of SITE_HBASE_HOST and SITE_HBASE_PORT, as host:port."""
    ports = address("SITE_HBASE_PORT", "hbase")
    yield from (f"{os.environ.get('SITE_HBASE_HOST', '127.0.0.1')}:{port}" for port in ports)


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """The value of SITE_REDIS_URL."""
    yield from address("SITE_REDIS_URL", "redis")


@pytest.fixture(scope="session")
def kafka_brokers() -> Iterator[str]:
    """The value of SITE_KAFKA_BROKERS."""
    yield from address("SITE_KAFKA_BROKERS", "kafka")
