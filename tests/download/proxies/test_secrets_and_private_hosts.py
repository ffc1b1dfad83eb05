"""What no proxy gets: credentials of others, private hosts, robots.txt, and the choice of a seed."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.core.downloader.handlers.http11 import TunnelError
from scrapy.http import Response

from site_spider.download.proxies import pool as proxy_target
from site_spider.spiders.crawl_spider import SeedSpider
from tests.download.proxies.network import (
    HOST,
    ONE,
    SECRETS,
    WITH_CREDENTIALS,
    Network,
    _short_rests,
    network,
    run,
)
from tests.in_process.engine import crawl, page

__all__ = ["_short_rests", "network"]


class Gossip(SeedSpider):
    """Logs and stores all that a spider can see of a request."""

    def parse(self, response: Response) -> Any:
        self._tell(response.request)
        return super().parse(response)

    def failed(self, failure: Any) -> Any:
        self._tell(failure.request)
        logging.getLogger("gossip").error("Failed", exc_info=failure.value)
        return super().failed(failure)

    def _tell(self, request: Request | None) -> None:
        assert request is not None
        logging.getLogger("gossip").info("%r %s", request.meta, request.headers)


def test_credentials_reach_the_proxy_and_nothing_else(
    tmp_path: Path, network: Network, caplog: pytest.LogCaptureFixture
) -> None:
    """Not the log at any level, tracebacks included, nor documents, statistics or stats."""
    caplog.set_level(1)
    echo = TunnelError(f"Could not open [b'you sent Proxy-Authorization: Basic {SECRETS[-1]}']")
    network.has("echo", 403, echo)
    network.has("fine", 403)
    network.has("moved", 403, lambda request: page(request, "", 302, Location="/fine"))
    network.has("banned", 403, 403)
    seeds = [{"url": f"{HOST}/{path}"} for path in ("echo", "fine", "moved", "banned")]
    crawled = crawl(
        tmp_path,
        seeds,
        Gossip,
        SITE_PROXIES=WITH_CREDENTIALS,
        SITE_ALLOW_PRIVATE_HOSTS=True,
        LOG_LEVEL="DEBUG",
        LOG_ENABLED=True,
    )
    assert sorted(str(document["status"]) for document in crawled.documents.values()) == [
        "200", "200", "403", "None",
    ]  # fmt: skip
    assert {b"Basic " + SECRETS[-1].encode(), None} == set(network.headers)
    written = json.dumps(crawled.documents) + repr(crawled.stats)
    written += caplog.text + repr([(record.args, record.exc_text) for record in caplog.records])
    assert ONE in written
    assert "Failed" in caplog.text
    stored = b"".join(file.read_bytes() for file in tmp_path.rglob("*") if file.is_file())
    assert b"fine" in stored
    for secret in SECRETS:
        assert secret not in written
        assert secret.encode() not in stored


@pytest.mark.parametrize(
    "url", ["http://10.0.0.1/refused", "http://127.1/refused", "http://inside.test/refused"]
)
def test_no_proxy_is_asked_for_a_private_host(
    tmp_path: Path, network: Network, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither by its address in whatever form nor by a name with a private address among others."""
    addresses = proxy_target._addresses

    async def resolved(host: str) -> list[str]:
        return ["93.184.216.34", "10.0.0.1"] if host == "inside.test" else await addresses(host)

    monkeypatch.setattr(proxy_target, "_addresses", resolved)
    network.has("refused", 403)
    crawled = run(tmp_path, {"url": url}, SITE_ALLOW_PRIVATE_HOSTS=False)
    (document,) = crawled.documents.values()
    assert document["description"].startswith("PrivateHostError: ")
    assert network.ways("refused") == [None]


def test_a_redirect_through_a_proxy_does_not_lead_to_a_private_host(tmp_path: Path, network: Network) -> None:
    """Each hop is looked at."""
    network.has("begin", 403, lambda request: page(request, "", 302, Location="http://10.0.0.1/inside"))
    network.has("inside", 403)
    seed = {"url": "http://8.8.8.8/begin", "meta": {"url_id": "begin"}}
    crawled = run(tmp_path, seed, SITE_ALLOW_PRIVATE_HOSTS=False)
    assert crawled.documents["begin"]["description"].startswith("PrivateHostError: 10.0.0.1 has a private")
    assert network.asked == [("begin", None), ("begin", ONE)]


def test_a_name_without_an_address_is_not_asked_for(tmp_path: Path, network: Network) -> None:
    """It could have one where the proxy is; a public one passes."""
    network.has("refused", 403)
    crawled = run(
        tmp_path, {"url": "http://no-such.invalid/refused"}, {"url": "http://8.8.8.8/refused"},
        SITE_ALLOW_PRIVATE_HOSTS=False,
    )  # fmt: skip
    said = {document["host"]: document for document in crawled.documents.values()}
    assert said["no-such.invalid"]["description"] == "DNSLookupError: no address for host no-such.invalid"
    assert said["8.8.8.8"]["status"] == 200
    assert network.ways("refused") == [None, None, ONE]


def test_a_seed_cannot_choose_a_proxy(tmp_path: Path, network: Network) -> None:
    """It becomes a dead letter."""
    crawled = run(tmp_path, {"url": HOST, "meta": {"proxy": "http://evil.test:1"}})
    assert len(crawled.dead_letters) == 1
    assert not network.asked


def test_robots_txt_is_never_asked_for_through_a_proxy(tmp_path: Path, network: Network) -> None:
    """A 403 for it is an answer (RFC 9309), not a refusal to get round."""
    network.has("robots.txt", 403)
    network.has("page", "<p>page")
    run(tmp_path, "page", ROBOTSTXT_OBEY=True)
    assert network.ways("robots.txt") == [None]
