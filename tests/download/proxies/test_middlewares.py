"""The proxy level, in whole crawls over a scripted network: what goes there, and what never shows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.core.downloader.handlers.http11 import TunnelError
from scrapy.exceptions import (
    DownloadConnectionRefusedError,
    DownloadFailedError,
    DownloadTimeoutError,
    ResponseDataLossError,
)
from scrapy.http import Response

from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from tests.download.proxies.network import (
    HOST,
    ONE,
    SECRETS,
    TWO,
    WITH_CREDENTIALS,
    Network,
    _short_rests,
    network,
    run,
)
from tests.in_process.engine import crawl, page

__all__ = ["_short_rests", "network"]


def test_a_configured_status_is_tried_again_through_a_proxy(tmp_path: Path, network: Network) -> None:
    """The result is what the proxy brought, and says which way it came; others come directly."""
    network.has("refused", 403)
    network.has("fine", "<p>fine")
    network.has("missing", 404)
    crawled = run(tmp_path, "refused", "fine", "missing")
    assert network.ways("refused") == [None, ONE]
    assert network.ways("fine") == network.ways("missing") == [None]
    document = crawled.documents["refused"]
    assert (document["status"], document["description"], document["proxy"]) == (200, None, ONE)
    assert document["body"] == "<p>fine"
    assert crawled.documents["fine"]["proxy"] is None
    assert crawled.documents["missing"]["proxy"] is None
    assert crawled.seeds["completed_with_result"] == 2
    assert crawled.lag == 0


def test_a_pattern_in_the_page_counts_like_a_status(tmp_path: Path, network: Network) -> None:
    """Whatever the status says."""
    network.has("captcha", "<title>Are you a robot?</title>")
    crawled = run(tmp_path, "captcha", SITE_PROXY_BODY_PATTERNS='["(?i)are you a ROBOT"]')
    assert network.ways("captcha") == [None, ONE]
    assert crawled.documents["captcha"]["body"] == "<p>fine"


@pytest.mark.parametrize("error", [DownloadTimeoutError, DownloadConnectionRefusedError, DownloadFailedError])
def test_silence_of_the_site_counts_after_so_many_attempts(
    tmp_path: Path, network: Network, error: type[Exception]
) -> None:
    """The retries come first."""
    network.has("silent", error("nobody there"))
    crawled = run(tmp_path, "silent")
    assert network.ways("silent") == [None, None, ONE]
    assert crawled.documents["silent"]["status"] == 200


def test_fewer_attempts_than_configured_are_not_enough(tmp_path: Path, network: Network) -> None:
    """One retry makes two attempts. With 0 there is no proxy for that at all."""
    network.has("silent", DownloadTimeoutError("nobody there"))
    for number, limit in enumerate((3, 0)):
        crawled = run(tmp_path / str(number), "silent", SITE_PROXY_TIMEOUTS=limit)
        assert crawled.documents["silent"]["status"] is None
    assert set(network.ways("silent")) == {None}


def test_retries_come_before_the_proxy(tmp_path: Path, network: Network) -> None:
    """A 429 is retried as always, then goes to the proxies. A seed that wants one attempt has one."""
    network.has("busy", 429)
    network.has("once", 403)
    once = {"url": f"{HOST}/once", "meta": {"url_id": "once", "dont_retry": True}}
    crawled = run(tmp_path, "busy", once)
    assert network.ways("busy") == [None, None, ONE]
    assert network.ways("once") == [None]
    assert crawled.documents["busy"]["status"] == 200
    assert crawled.documents["once"]["status"] == 403


def test_after_the_last_attempt_its_answer_is_the_result(tmp_path: Path, network: Network) -> None:
    """With its body, as without proxies; RETRY_TIMES does not multiply the attempts."""
    network.has("banned", 403, 403)
    network.has("broken", 403, 503)
    crawled = run(tmp_path, "banned", "broken", SITE_PROXIES=f"{ONE},{TWO}", SITE_PROXY_ATTEMPTS=2)
    for path, status in (("banned", 403), ("broken", 503)):
        ways = network.ways(path)
        assert ways[0] is None
        assert sorted(map(str, ways[1:])) == [ONE, TWO]  # not the same one twice
        document = crawled.documents[path]
        assert (document["status"], document["body"]) == (status, f"<p>{status}")
        assert document["proxy"] == ways[-1]
    assert crawled.seeds["completed_with_failure"] == 2


def test_what_is_retried_directly_is_not_retried_beyond_the_limit(tmp_path: Path, network: Network) -> None:
    """RETRY_TIMES counts for the direct attempts alone."""
    network.has("broken", 403, 503)
    crawled = run(tmp_path, "broken", SITE_PROXY_ATTEMPTS=1, RETRY_TIMES=5)
    assert network.ways("broken") == [None, ONE]
    assert crawled.documents["broken"]["status"] == 503


@pytest.mark.parametrize(
    ("fault", "said"),
    [
        (DownloadConnectionRefusedError("refused"), "cannot be connected to"),
        (DownloadTimeoutError("too long"), "brought no answer in time"),
        (DownloadFailedError("reset"), "brought no answer (DownloadFailedError)"),
        (407, "wants other credentials (HTTP 407)"),
        (
            TunnelError("Could not open [{'status': 407, 'reason': b''}]"),
            "wants other credentials (HTTP 407)",
        ),
        (TunnelError("Could not open [{'status': 403, 'reason': b''}]"), "opens no tunnel (HTTP 403)"),
        (TunnelError("Could not open [b'garbage']"), "opens no tunnel"),
        (
            TunnelError("Could not open [{'status': 502, 'reason': b''}]"),
            "does not reach the site (HTTP 502)",
        ),
        (ResponseDataLossError("half"), "brought a part of the answer"),
    ],
)
def test_when_no_proxy_brings_an_answer_the_result_says_so(
    tmp_path: Path, network: Network, fault: Any, said: str
) -> None:
    """A page of the proxy's own is no result of the site."""
    network.has("refused", 403, fault)
    crawled = run(tmp_path, "refused", SITE_PROXY_ATTEMPTS=2)
    assert network.ways("refused") == [None, ONE, ONE]
    document = crawled.documents["refused"]
    assert document["status"] is None
    assert document["description"].startswith(
        f"ProxyFailed: {ONE} {said}, at attempt 2; without a proxy: HTTP 403 Forbidden"
    )
    assert document["proxy"] == ONE
    assert crawled.lag == 0


def test_a_proxy_that_fails_rests_and_others_take_over(tmp_path: Path, network: Network) -> None:
    """Each page has its result from the one that works."""
    paths = [f"page/{number}" for number in range(8)]
    for path in paths:
        network.has(path, 403, one=DownloadConnectionRefusedError("dead"))
    crawled = run(tmp_path, *paths, SITE_PROXIES=f"{ONE},{TWO}")
    assert {document["proxy"] for document in crawled.documents.values()} == {TWO}
    assert all(document["status"] == 200 for document in crawled.documents.values())


def test_when_all_proxies_rest_requests_wait(tmp_path: Path, network: Network) -> None:
    """A dead proxy does not use up the attempts of all that waits: one page tries it at a time."""
    tries = 0

    def wakes_up(request: Request) -> Response:
        nonlocal tries
        tries += 1
        if tries < 3:
            raise DownloadConnectionRefusedError("dead")
        return page(request)

    paths = [f"page/{number}" for number in range(20)]
    for path in paths:
        network.has(path, 403, wakes_up)
    crawled = run(tmp_path, *paths, CONCURRENT_REQUESTS_PER_DOMAIN=1, SITE_PROXY_ATTEMPTS=3)
    assert [document["status"] for document in crawled.documents.values()] == [200] * 20
    assert tries == 22
    assert crawled.lag == 0


def test_a_proxied_request_waits_behind_seeds_and_retries(tmp_path: Path, network: Network) -> None:
    """It is served last, for its own host as for others; the statistics count it apart."""
    network.has("refused", 403)
    paths = [f"seed/{number}" for number in range(10)]
    for path in paths:
        network.has(path, "<p>seed")
    lengths: list[dict[str, int]] = []

    class Watching(SeedSpider):
        def parse(self, response: Response) -> Any:
            service = SeedService.of(self.crawler)
            assert service is not None
            lengths.append(service.parts.queues.lengths())
            return super().parse(response)

    seeds = [{"url": f"{HOST}/{path}", "meta": {"url_id": path}} for path in ["refused", *paths]]
    crawl(
        tmp_path,
        seeds,
        Watching,
        SITE_PROXIES=ONE,
        SITE_ALLOW_PRIVATE_HOSTS=True,
        CONCURRENT_REQUESTS_PER_DOMAIN=1,
    )
    in_partition = [path for path, _ in network.asked]
    assert in_partition[-1] == "refused"
    assert network.ways("refused") == [None, ONE]
    assert max(length["proxied"] for length in lengths) == 1
    assert all(length["retried"] == 0 for length in lengths)


def test_redirects_stay_with_the_proxy_and_links_do_not(tmp_path: Path, network: Network) -> None:
    """A link begins directly, also where a spider copies the meta of the page."""

    class Copying(SeedSpider):
        def parse(self, response: Response) -> Any:
            if response.url.endswith("/arrived"):
                return [Request(f"{HOST}/link", meta=dict(response.meta))]
            return []

    network.has("begin", 403, lambda request: page(request, "", 302, Location="/arrived"))
    network.has("arrived", 403)
    network.has("link", 500)
    crawl(
        tmp_path,
        [{"url": f"{HOST}/begin"}],
        Copying,
        SITE_PROXIES=WITH_CREDENTIALS,
        SITE_ALLOW_PRIVATE_HOSTS=True,
        SITE_PROXY_ATTEMPTS=1,
    )
    assert network.asked == [
        ("begin", None), ("begin", ONE), ("arrived", ONE), ("link", None), ("link", None),
    ]  # fmt: skip
    secret = b"Basic " + SECRETS[-1].encode()
    assert network.headers == [None, secret, secret, None, None]


def test_a_stop_while_all_proxies_rest_loses_nothing(tmp_path: Path, network: Network) -> None:
    """The seed stays uncommitted for the next owner."""
    network.has("refused", 403, DownloadConnectionRefusedError("dead"))
    seeds = [{"url": f"{HOST}/refused", "meta": {"url_id": "refused"}}]
    crawled = crawl(
        tmp_path,
        seeds,
        until=lambda crawler: bool(network.ways("refused")[1:]),
        SITE_PROXIES=ONE,
        SITE_ALLOW_PRIVATE_HOSTS=True,
    )
    assert crawled.lag == 1
    network.has("refused", 403)
    again = crawl(tmp_path, [], SITE_PROXIES=ONE, SITE_ALLOW_PRIVATE_HOSTS=True)
    assert again.documents["refused"]["status"] == 200
    assert again.lag == 0
