"""/metrics, /healthz and /readyz of a real crawl in this process."""

from __future__ import annotations

import asyncio
import http.client
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as open_families
from scrapy import Request
from scrapy.http import Response

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.contracts.seed_log import LogFacts, Partition
from site_spider.errors import ConfigError, LogUnavailable
from site_spider.observe.metrics import exporter as http_server
from site_spider.observe.metrics.catalogue import METRICS, OF_A_HOST
from site_spider.observe.metrics.exporter import Exporter, GroupWatch, MetricsAddress, Reply, RouteServer
from tests.in_process import engine, virtual_time
from tests.in_process.engine import crawl, page, produce
from tests.observe.metrics.test_exposition import MOST_SERIES, sample_names, samples
from tests.reader import kept_port

_TWO_LEFT = re.compile(rb"^site_spider_group_lag_seeds\S* 2(\.0)?$", re.MULTILINE)  # the others are committed
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def get(port: int, path: str, accept: str = "") -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=300)
    try:
        connection.request("GET", path, headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        return answer.status, answer.read()
    finally:
        connection.close()


def while_crawling(
    folder: Path, ask: Callable[[int], Any], meanwhile: Callable[[], None] | None = None, **overrides: Any
) -> Any:
    """What `ask` gets of the port, in a thread, while a page is downloading and others are done."""
    with kept_port() as port:
        return crawl_while_asked(folder, port, ask, meanwhile, **overrides)


def crawl_while_asked(
    folder: Path, port: int, ask: Callable[[int], Any], meanwhile: Callable[[], None] | None, **overrides: Any
) -> Any:
    answers: list[Any] = []

    async def last(request: Request) -> Response:
        await asyncio.sleep(1.0)  # what lags has an age
        await asyncio.to_thread(get, port, "/metrics")
        work = threading.Thread(target=lambda: answers.append(ask(port)))
        work.start()
        if meanwhile is not None:
            meanwhile()
        while work.is_alive():
            await asyncio.sleep(0.02)
        return page(request)

    engine.ANSWERS["/last"] = last
    engine.ANSWERS["/missing"] = lambda request: page(request, status=404)
    engine.ANSWERS["/moved"] = lambda request: page(request, status=302, Location="/there")
    paths = ("there", "missing", "moved", "last", "waits")
    hosts = (0, 1, 2, 3, 3)
    seeds: list[Any] = [{"url": f"http://h{host}.test/{path}"} for host, path in zip(hosts, paths, strict=True)]
    overrides = {"CONCURRENT_REQUESTS_PER_DOMAIN": 1, **overrides}
    found = crawl(folder, [*seeds, b"no seed"], SITE_METRICS_ADDRESS=f"127.0.0.1:{port}", **overrides)
    assert found.lag == 0
    return answers[0]


def all_of_it(port: int) -> dict[str, Any]:
    deadline = time.monotonic() + 300
    while not _TWO_LEFT.search(get(port, "/metrics")[1]):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    return {
        "plain": get(port, "/metrics")[1],
        "open": get(port, "/metrics", OPENMETRICS)[1].decode(),
        "healthz": get(port, "/healthz"),
        "readyz": get(port, "/readyz"),
    }


def test_a_crawl_exports_every_metric_that_applies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CRAWL_SPIDER_RESTARTS", "137:2,70:1")
    found = while_crawling(tmp_path, all_of_it)
    text = samples(found["plain"])
    exported = {name for name, _ in text}
    absent = {metric.name for metric in METRICS if metric.common != OF_A_HOST and not exported & sample_names(metric)}
    # of proxies without proxies, retention of a log that never deletes
    assert absent == {"proxies", "proxy_requests", "topic_retention_seconds"}
    assert len(text) <= MOST_SERIES
    totals: dict[str, float] = {}
    for (name, _), value in text.items():
        totals[name] = totals.get(name, 0) + value
    consumed, completed = (totals["site_spider_seeds_consumed_total"], totals["site_spider_seeds_completed_total"])
    assert (consumed, completed, totals["site_spider_seeds_in_flight"]) == (6, 4, 2)
    assert totals["site_spider_redirects_total"] == 1
    assert totals["site_spider_process_restarts_total"] == 3
    assert totals["site_spider_group_lag_seeds"] == 2
    assert totals["site_spider_group_lag_age_seconds"] > 0.5
    assert totals["site_spider_dead_letters"] == 1
    assert totals["site_spider_group_members"] == 1
    assert totals["site_spider_sink_records_total"] >= 3
    assert totals["site_spider_kafka_commits_total"] >= 1
    assert totals["site_spider_last_commit_timestamp_seconds"] > time.time() - 60
    assert found["healthz"] == (200, b"ok\n")
    assert found["readyz"] == (200, b"ok\n")
    exemplars = [
        sample.exemplar.labels["seed"]
        for family in open_families(found["open"])
        for sample in family.samples
        if sample.exemplar is not None
    ]
    assert exemplars
    assert all(seed.startswith("seeds/") and "@" in seed for seed in exemplars)
    assert ".test" not in found["open"]


def test_a_blocked_event_loop_is_not_healthy_and_metrics_go_on(tmp_path: Path) -> None:
    is_asked, is_seen = threading.Event(), threading.Event()

    def hold_the_loop() -> None:
        is_asked.wait(300)
        virtual_time.skip(7)
        is_seen.wait(300)

    def ask(port: int) -> dict[str, Any]:
        first = get(port, "/healthz")
        deadline = time.monotonic() + 300
        is_asked.set()
        while (now := get(port, "/healthz"))[0] == 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        metrics = get(port, "/metrics")[1]
        is_seen.set()
        while (after := get(port, "/healthz"))[0] != 200 and time.monotonic() < deadline:
            time.sleep(0.1)
        return {"first": first, "blocked": now, "metrics": metrics, "after": after}

    found = while_crawling(tmp_path, ask, hold_the_loop)
    assert found["first"][0] == 200
    assert found["blocked"][0] == 503
    assert b"not turned for" in found["blocked"][1]
    silent = [value for (name, _), value in samples(found["metrics"]).items() if name.endswith("_silent_seconds")]
    assert silent > [4]
    assert found["after"] == (200, b"ok\n")


async def test_before_the_crawl_is_open_it_is_healthy_and_not_ready() -> None:
    exporter = Exporter()
    await exporter.open("127.0.0.1", 0, 0)
    port = exporter._server.server_address[1]
    healthz, readyz, metrics = [
        await asyncio.to_thread(get, port, path) for path in ("/healthz", "/readyz", "/metrics")
    ]
    await exporter.close()
    assert healthz[0] == 200
    assert readyz == (503, b"the crawl is not open yet\n")
    assert metrics[0] == 503


def test_an_address_that_is_taken_ends_the_start_with_the_setting_in_the_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, server: RouteServer
) -> None:
    """Also by another crawl."""
    monkeypatch.setattr("site_spider.observe.metrics.exporter._WAIT_SECONDS", 0.1)
    address = f"127.0.0.1:{server.server_address[1]}"
    found = crawl(tmp_path, [{"url": "http://h.test/there"}], SITE_METRICS_ADDRESS=address)
    assert found.exit_code == 78
    assert "SITE_METRICS_ADDRESS" in caplog.text
    assert address.rpartition(":")[2] in caplog.text


@pytest.mark.parametrize(
    "value",
    ["9410", "localhost", "localhost:", ":9410", "a b:1", "127.0.0.1:0", "h:65536", "h:99999", "::1:9410", "h:-1"],
)
def test_an_address_that_is_none_is_refused(value: str) -> None:
    with pytest.raises(ConfigError, match="SITE_METRICS_ADDRESS is"):
        MetricsAddress.read({"SITE_METRICS_ADDRESS": value}, {})


def test_each_process_of_the_script_has_a_port_of_its_own() -> None:
    def of(slot: str, value: str = "127.0.0.1:9410") -> MetricsAddress | None:
        return MetricsAddress.read({"SITE_METRICS_ADDRESS": value}, {"CRAWL_SPIDER_SLOT": slot})

    assert of("1") == ("127.0.0.1", 9410)
    assert of("3") == ("127.0.0.1", 9412)
    assert of("1", "[::1]:9410") == ("::1", 9410)
    assert of("1", "") is None
    with pytest.raises(ConfigError, match="65535"):
        of("3", "h:65534")


# --- The server of metrics: bounded in connections, bytes and time, whatever is sent


WAIT_SECONDS = 300


@pytest.fixture(scope="module")
def server() -> Iterator[RouteServer]:
    routes = {"/there": lambda accept: Reply(HTTPStatus.OK, f"asked for {accept}".encode())}
    made = RouteServer("127.0.0.1", 0, routes)
    yield made
    made.close()


def connected(server: RouteServer) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.server_address[1]))
    connection.settimeout(WAIT_SECONDS)
    return connection


def answered(server: RouteServer, request: bytes) -> bytes:
    with connected(server) as connection:
        connection.sendall(request)
        return read(connection)


def read(connection: socket.socket) -> bytes:
    answer = b""
    try:
        while some := connection.recv(65_536):
            answer += some
    except ConnectionResetError:
        pass  # it was not interested in the rest of the request
    return answer


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"GET /there?x=1 HTTP/1.1\r\nHost: a\r\nAccept: all\r\n\r\n", b"200"),
        (b"GET /other HTTP/1.1\r\n\r\n", b"404"),
        (b"GET //evil.test/there HTTP/1.1\r\n\r\n", b"404"),
        (b"POST /there HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", b"405"),
        (b"HEAD /there HTTP/1.1\r\n\r\n", b"405"),
        (b"DELETE /there HTTP/1.1\r\n\r\n", b"405"),
        (b"GET /there SPDY/9\r\n\r\n", b"400"),
        (b"\x16\x03\x01\x02\x00 tls\r\n\r\n", b"400"),
        (b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n", b"414"),
        (b"GET /there HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", b"431"),
        (b"GET /there HTTP/1.1\r\na: " + b"b" * 70_000 + b"\r\n\r\n", b"431"),
    ],
)
def test_a_route_answers_and_anything_else_is_refused(server: RouteServer, request_: bytes, status: bytes) -> None:
    answer = answered(server, request_)
    assert status in answer.split(b"\n")[0] or status == b"400", answer[:200]
    assert answer.endswith(b"\r\n\r\nasked for all") if status == b"200" else b"asked for" not in answer


def test_further_connections_are_closed_while_so_many_are_open(server: RouteServer) -> None:
    held = [connected(server) for _ in range(http_server._MOST_CONNECTIONS)]
    time.sleep(0)  # the places are taken in the order of the connections
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        with connected(server) as one_more:
            if read(one_more) == b"":  # closed at once: no place
                break
        assert time.monotonic() < deadline
    for connection in held:
        connection.close()
    while b"200" not in answered(server, b"GET /there HTTP/1.1\r\n\r\n"):
        assert time.monotonic() < deadline


def test_a_process_that_was_at_its_limit_of_threads_answers_again(
    server: RouteServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_more_threads(_timer: threading.Timer) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched:
        patched.setattr(http_server.runtime.Timer, "start", no_more_threads)
        for _ in range(2 * http_server._MOST_CONNECTIONS):
            assert answered(server, b"GET /there HTTP/1.1\r\n\r\n") == b""
    assert b"200" in answered(server, b"GET /there HTTP/1.1\r\n\r\n")


def test_who_says_nothing_or_trickles_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "_LONGEST_SECONDS", 0.5)
    server = RouteServer("127.0.0.1", 0, {})
    ended = threading.Event()

    def trickle(connection: socket.socket) -> None:
        try:
            while not ended.wait(0.05):
                connection.sendall(b"G")
        except OSError:
            pass

    try:
        with connected(server) as connection:
            work = threading.Thread(target=trickle, args=(connection,))
            work.start()
            began = time.monotonic()
            read(connection)
            assert time.monotonic() - began < WAIT_SECONDS / 2
            ended.set()
            work.join()
    finally:
        server.close()


# --- What is known of the whole group, and that nobody waits for it


def looked(watch: GroupWatch) -> dict[str, Any]:
    deadline = time.monotonic() + 300
    while not (found := watch.look()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    return found


def test_each_tier_has_lag_and_age_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But one that nobody has produced to yet. The log is asked some times a minute only."""
    asked = []

    class Counted(LocalSeedLog):
        def progress(self, topic: str, group: str | None) -> Any:
            asked.append(topic)
            return super().progress(topic, group)

    log = Counted(tmp_path)
    produce(log, "urgent", [{"url": "http://h.test/1"}])
    produce(log, "bulk", [{"url": "http://h.test/1"}] * 3)
    produce(log, "dead", [b"x"] * 2)
    monkeypatch.setattr(http_server.runtime, "monotonic", lambda: 0.0)
    watch = GroupWatch(log, ("urgent", "seeds", "bulk"), "g", "dead")
    found = looked(watch)
    ages = found.pop("lag_age_seconds")
    assert (set(ages), 0 <= ages["bulk"] < 60) == ({"urgent", "bulk"}, True)
    assert found == {
        "lag_seeds": {"urgent": 1, "bulk": 3},
        "partitions_unowned": {"urgent": 4, "bulk": 4},
        "dead_letters": {"dead": 2},
        "members": 0,
    }
    for _ in range(100):
        watch.look()
    assert asked == ["urgent", "seeds", "bulk", "dead"]


def test_dead_letters_that_nobody_can_count_are_not_none(tmp_path: Path) -> None:
    """As where the rights for their topic are missing; all else is shown."""

    class Closed(LocalSeedLog):
        def progress(self, topic: str, group: str | None) -> Any:
            if topic == "dead":
                raise LogUnavailable("not authorized")
            return super().progress(topic, group)

    log = Closed(tmp_path)
    produce(log, "seeds", [b"x"])
    found = looked(GroupWatch(log, ("seeds",), "g", "dead"))
    assert (found["lag_seeds"], found.get("dead_letters")) == ({"seeds": 1}, None)


def test_a_log_that_does_not_answer_is_not_waited_for_and_nothing_old_is_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    class Slow(LocalSeedLog):
        def facts(self, topic: str, group: str, offsets: Mapping[Partition, int]) -> LogFacts:
            if answers.is_set():
                raise LogUnavailable("away")
            return super().facts(topic, group, offsets)

    now = [0.0]
    log = Slow(tmp_path)
    produce(log, "seeds", [b"x"])
    monkeypatch.setattr(http_server.runtime, "monotonic", lambda: now[0])
    watch = GroupWatch(log, ("seeds",), "g", "dead")
    assert looked(watch)["lag_seeds"] == {"seeds": 1}
    answers.set()
    now[0] += 60
    deadline = time.monotonic() + 300
    while watch.look():
        assert time.monotonic() < deadline
        time.sleep(0.02)
