"""Retries: when and how often, in the real engine; tests/frontier/test_backoff.py has the pauses."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from scrapy import Request
from scrapy.core.downloader.handlers.http11 import TunnelError
from scrapy.crawler import Crawler
from scrapy.exceptions import CannotResolveHostError, DownloadConnectionRefusedError, DownloadTimeoutError
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from site_spider.download.tls import CertificateError
from site_spider.errors import ConfigError
from site_spider.frontier.politeness import PoliteFrontier
from site_spider.frontier.retry_and_redirect import PatientRetryMiddleware, read_limits
from site_spider.frontier.waiter import Waiter
from site_spider.ledger.ledger import SeedInFlight
from site_spider.service.service import SeedService
from tests.frontier.test_backoff import date
from tests.in_process import engine
from tests.in_process.engine import crawl, page

EXCEPTIONS = ("TimeoutError", "DNSLookupError")


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ({"503": -1}, "-1 for 503"),
        ({"503": "5"}, "'5' for 503"),
        ({"503": True}, "True for 503"),
        ({"503": 1.5}, "1.5 for 503"),
        ({"503": 101}, "from 0 to 100"),
        ({"99": 1}, "'99'"),
        ({"PrivateHostError": 1}, "one of: DNSLookupError, TimeoutError"),
        ({"": 1}, "''"),
        ("[1]", "JSON object"),
        ("{", "JSON object"),
    ],
)
def test_wrong_limits_are_refused_by_name(value: Any, part: str) -> None:
    with pytest.raises(ConfigError, match="SITE_RETRY_TIMES_BY_REASON") as caught:
        read_limits({"SITE_RETRY_TIMES_BY_REASON": value}, "SITE_RETRY_TIMES_BY_REASON", EXCEPTIONS)
    assert part in str(caught.value)


class SlowPage(DownloadTimeoutError):
    """An own exception, which descriptions and limits name as what it is."""


def test_an_own_exception_has_the_limit_of_what_it_is() -> None:
    """One under its own name was accepted, and never counted."""
    of_retries = {"RETRY_EXCEPTIONS": [SlowPage], "SITE_RETRY_PAUSE_SECONDS": 1, "SITE_RETRY_LONGEST_PAUSE_SECONDS": 9}
    for name, is_known in [("TimeoutError", True), ("SlowPage", False)]:
        crawler = get_crawler(settings_dict={**of_retries, "SITE_RETRY_TIMES_BY_REASON": {name: 1}})
        with nullcontext() if is_known else pytest.raises(ConfigError, match="one of: TimeoutError"):
            assert PatientRetryMiddleware.from_crawler(crawler).limits == {"TimeoutError": 1}


REFUSED, TIMEOUT, UNKNOWN = (DownloadConnectionRefusedError(), DownloadTimeoutError("slow"), CannotResolveHostError())
TUNNEL = TunnelError("closed")


class Script:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch
        self.moments: dict[str, list[float]] = defaultdict(list)

    def has(self, path: str, *answers: int | Exception, **headers: str) -> None:
        left = list(answers)

        def answer(request: Request) -> Response:
            self.moments[path].append(asyncio.get_running_loop().time())
            said = left.pop(0) if len(left) > 1 else left[0]
            if isinstance(said, Exception):
                raise said
            return page(request, status=said, **(headers if said != 200 else {}))

        self._monkeypatch.setitem(engine.ANSWERS, path, answer)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    monkeypatch.setattr(engine, "ANSWERS", {})
    return Script(monkeypatch)


def seed(path: str, **meta: Any) -> dict[str, Any]:
    return {"url": f"http://h.test{path}", "meta": {"url_id": path, **meta}}


def test_the_description_has_the_reason_of_every_retry(tmp_path: Path, script: Script) -> None:
    script.has("/ends-well", 503, REFUSED, 200)
    script.has("/times-out", REFUSED, 503, TIMEOUT)
    script.has("/stays-away", 503)
    script.has("/unknown", UNKNOWN)
    script.has("/gone", 404)
    script.has("/once", 500, 404)
    script.has("/wrong", CertificateError.of("h.test"))
    paths = ["/ends-well", "/times-out", "/stays-away", "/unknown", "/gone", "/once", "/wrong"]
    found = crawl(tmp_path, [seed(path) for path in paths], RETRY_TIMES=2)
    said = {path: found.documents[path]["description"] for path in paths}
    assert said["/ends-well"] is None
    assert said["/times-out"].startswith("TimeoutError: ")
    assert said["/times-out"].endswith(" (after 2 retries: ConnectionRefusedError, HTTP 503)")
    assert said["/stays-away"] == "HTTP 503 Service Unavailable (after 2 retries: 2 x HTTP 503)"
    assert said["/unknown"] == "DNSLookupError: no address for host h.test (after 2 retries: 2 x DNSLookupError)"
    assert said["/gone"] == "HTTP 404 Not Found"
    assert said["/once"] == "HTTP 404 Not Found (after 1 retry: HTTP 500)"
    assert said["/wrong"].startswith("CertificateError: the certificate of h.test cannot be verified")
    assert (len(script.moments["/wrong"]), found.documents["/wrong"]["retries"]) == (1, 0)
    assert found.documents["/ends-well"]["retries"] == 2
    assert found.documents["/gone"]["retries"] == 0


def test_an_error_whose_body_cannot_be_unpacked_is_one_by_its_status(tmp_path: Path, script: Script) -> None:
    """It is retried, and its host left alone."""
    packed = {"Content-Encoding": "gzip"}
    script.has("/recovers", 503, 200, **packed)
    script.has("/away", 503, **packed)
    script.has("/gone", 404, **packed)
    found = crawl(tmp_path, [seed(path) for path in ("/recovers", "/away", "/gone")], RETRY_TIMES=1)
    said = [found.documents[path]["description"] for path in ("/recovers", "/away", "/gone")]
    assert said == [None, "HTTP 503 Service Unavailable (after 1 retry: HTTP 503)", "HTTP 404 Not Found"]


def test_how_often_is_set_by_reason(tmp_path: Path, script: Script) -> None:
    answers: dict[str, list[int | Exception]] = {"/404": [404], "/500": [500], "/503": [503], "/own": [503]}
    answers |= {"/timeout": [TIMEOUT], "/refused": [REFUSED], "/by-itself": [503, 404, 503], "/tunnel": [TUNNEL]}
    answers |= {"/shared": [503, REFUSED]}  # for a reason without a limit of its own
    for path, said in answers.items():
        script.has(path, *said)
    limits = '{"404": 1, "500": 0, "503": 3, "TimeoutError": 0, "TunnelError": 1}'
    seeds = [seed(path) for path in answers if path != "/own"]
    settings = {"RETRY_TIMES": 2, "SITE_RETRY_PAUSE_SECONDS": 0.01, "SITE_RETRY_TIMES_BY_REASON": limits}
    found = crawl(tmp_path, [*seeds, seed("/own", max_retry_times=1)], **settings)
    tries = {path: len(moments) for path, moments in script.moments.items()}
    of_mixed = {"/by-itself": 5, "/shared": 3}
    assert tries == {"/404": 2, "/500": 1, "/503": 4, "/timeout": 1, "/refused": 3, "/own": 2, "/tunnel": 2, **of_mixed}
    assert found.documents["/503"]["retries"] == 3


@pytest.mark.parametrize("status", [429, 503])
def test_an_overloaded_host_is_left_alone_and_others_go_on(tmp_path: Path, script: Script, status: int) -> None:
    for number in range(8):
        script.has(f"/together/{number}", status, 200)
    script.has("/later", 200)
    script.has("/other", 200)
    seeds = [seed(f"/together/{number}") for number in range(8)]
    other = {"url": "http://other.test/other", "meta": {"url_id": "/other"}}
    found = crawl(tmp_path, [*seeds, seed("/later"), other], SITE_RETRY_PAUSE_SECONDS=4)
    assert {document["description"] for document in found.documents.values()} == {None}
    began = script.moments["/together/0"][0]
    assert script.moments["/later"][0] - began >= 4
    assert script.moments["/other"][0] - began < 4
    retried = [script.moments[f"/together/{number}"][1] - began for number in range(8)]
    assert min(retried) >= 4
    assert max(retried) < 16  # a second step would have taken 8 more


def test_retry_after_holds_the_whole_host(tmp_path: Path, script: Script) -> None:
    script.has("/limited", 429, 200, Retry_After=date(1), Date=date(0))
    script.has("/next", 200)
    crawl(tmp_path, [seed("/limited"), seed("/next")], CONCURRENT_REQUESTS_PER_DOMAIN=1)
    first = script.moments["/limited"][0]
    assert script.moments["/limited"][1] - first >= 1
    assert script.moments["/next"][0] - first >= 1


@pytest.mark.parametrize("failure", [REFUSED, 503, 429])
def test_a_site_that_is_away_for_five_seconds_fails_nothing(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch, failure: int | Exception
) -> None:
    """With the two retries and the pauses of the defaults."""
    began: list[float] = []

    def answer(request: Request) -> Response:
        now = asyncio.get_running_loop().time()
        began.append(now)
        if now - began[0] > 5:
            return page(request)
        if isinstance(failure, Exception):
            raise failure
        return page(request, status=failure)

    monkeypatch.setattr(engine, "ANSWERS", {f"/{number}": answer for number in range(40)})
    seeds = [seed(f"/{number}") for number in range(40)]
    settings = {"RETRY_TIMES": 2, "SITE_RETRY_PAUSE_SECONDS": 2.0}
    found = crawl(tmp_path, seeds, **settings)
    assert {document["status"] for document in found.documents.values()} == {200}
    assert {document["description"] for document in found.documents.values()} == {None}
    assert len(found.documents) == 40


def test_retries_wait_behind_the_seeds_redirected_ones_too(
    tmp_path: Path, script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Links above the seeds, redirects above the links, retries of all of them below; own priorities stay."""
    levels: dict[str, list[int]] = defaultdict(list)
    put = PoliteFrontier._put

    def noted(room: PoliteFrontier, waiter: Waiter, not_before: float) -> None:
        if not isinstance(waiter, SeedInFlight):
            levels[urlsplit(waiter.url).path].append(-waiter.priority)
        put(room, waiter, not_before)

    monkeypatch.setattr(PoliteFrontier, "_put", noted)
    script.has("/target", 503, 503, 200)
    script.has("/own-target", 503, 200)
    script.has("/link", 503, 503, 200)
    engine.ANSWERS["/redirects"] = lambda r: page(r, "", 302, Location="/target")
    engine.ANSWERS["/own"] = lambda r: page(r, "", 302, Location="/own-target")
    engine.ANSWERS["/linking"] = lambda r: page(r, "<a href=/link>")
    seeds = [seed("/redirects"), {**seed("/own"), "priority": 7}, seed("/linking")]
    found = crawl(tmp_path, seeds, RETRY_TIMES=2)
    assert {document["description"] for document in found.documents.values()} == {None}
    assert levels == {"/target": [-2, 1, 2], "/own-target": [-9, -6], "/link": [-1, 1, 2]}


def test_a_retry_is_served_though_seeds_keep_coming(tmp_path: Path, script: Script) -> None:
    """After SITE_MAX_WAIT_SECONDS it comes before all levels."""
    script.has("/retried", 500, 200)

    async def slow(request: Request) -> Response:
        script.moments["others"].append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.02)
        return page(request)

    engine.ANSWERS.update({f"/{number}": slow for number in range(150)})
    seeds = [seed("/retried"), *(seed(f"/{number}") for number in range(150))]
    crawl(tmp_path, seeds, CONCURRENT_REQUESTS=1, SITE_MAX_WAIT_SECONDS=1, SITE_MAX_SEEDS_IN_FLIGHT=10)
    assert script.moments["/retried"][1] < script.moments["others"][-1] - 0.5


def test_no_request_is_remembered_that_has_come_back(tmp_path: Path, script: Script) -> None:
    script.has("/a", 503, 200)
    rooms: list[Any] = []

    def until(crawler: Crawler) -> bool:
        parts = SeedService.of(crawler).parts
        rooms.append(parts.room)
        return parts.completion.ledger.consumed == 1 and parts.completion.ledger.in_flight == 0

    crawl(tmp_path, [seed("/a")], until=until)
    assert rooms[-1].is_idle
