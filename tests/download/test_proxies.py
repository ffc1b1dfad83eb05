"""The proxy level, in whole crawls over a scripted network: what goes there, and what never shows."""

from __future__ import annotations

import asyncio
import json
import logging
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

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
from scrapy.settings import Settings

from site_spider.download import proxies as proxy_service
from site_spider.download import proxy_pool
from site_spider.download.descriptors import DescriptorShortage
from site_spider.download.proxies import SEARCHED_BYTES, PagePatterns
from site_spider.errors import ConfigError
from site_spider.service.service import SeedService
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page

HOST = "http://h.test"
ONE, TWO = "http://one.test:3128", "http://two.test:3128"
SECRETS = ("operator", "hush%3Ahush", "hush:hush", b64encode(b"operator:hush:hush").decode())
WITH_CREDENTIALS = "http://operator:hush%3Ahush@one.test:3128"


class Network:
    """What was asked for, and through which proxy; what is answered follows from both."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str | None]] = []
        self.headers: list[bytes | None] = []

    def has(self, path: str, direct: Any, through: Any = "<p>fine", **by_proxy: Any) -> None:
        """An answer is a status, a body or an exception; `one` and `two` stand for the proxies."""

        def answer(request: Request) -> Response:
            proxy = request.meta.get("proxy")
            self.asked.append((path, proxy))
            self.headers.append(request.headers.get("Proxy-Authorization"))
            chosen = direct if proxy is None else by_proxy.get("one" if proxy == ONE else "two", through)
            if callable(chosen) and not isinstance(chosen, type):
                chosen = chosen(request)
            if isinstance(chosen, Response):
                return chosen
            if isinstance(chosen, Exception):
                raise chosen
            status, body = (chosen, f"<p>{chosen}") if isinstance(chosen, int) else (200, chosen)
            return page(request, body, status)

        engine.ANSWERS[f"/{path}"] = answer

    def ways(self, path: str) -> list[str | None]:
        return [proxy for asked, proxy in self.asked if asked == path]


@pytest.fixture
def network() -> Network:
    return Network()


@pytest.fixture(autouse=True)
def _short_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    short = {"FIRST_REST": 0.1, "LONGEST_REST": 0.4, "TRIAL": 0.2, "SOONEST": 0.05}
    for name, seconds in short.items():
        monkeypatch.setattr(proxy_pool, f"_{name}_SECONDS", seconds)


def run(folder: Path, *paths: str | dict[str, Any], **overrides: Any) -> Crawled:
    seeds = [path if isinstance(path, dict) else {"url": f"{HOST}/{path}", "meta": {"url_id": path}} for path in paths]
    settings = {"SITE_PROXIES": ONE, "SITE_ALLOW_PRIVATE_HOSTS": True, "RETRY_TIMES": 1} | overrides
    return crawl(folder, seeds, **settings)


WAYS: dict[str, tuple[Any, list[str | None]]] = {
    "fine": ("<p>fine", [None]),
    "missing": (404, [None]),
    "refused": (403, [None, ONE]),
    "captcha": ("<title>Are you a robot?</title>", [None, ONE]),
    "timeout": (DownloadTimeoutError("nobody there"), [None, None, ONE]),
    "unconnected": (DownloadConnectionRefusedError("nobody there"), [None, None, ONE]),
    "reset": (DownloadFailedError("nobody there"), [None, None, ONE]),
    "busy": (429, [None, None, ONE]),
    "once": (403, [None]),  # a seed that wants one attempt has one
}


def test_what_is_not_taken_directly_is_tried_again_through_a_proxy(tmp_path: Path, network: Network) -> None:
    """A configured status, a pattern in the page, and silence; the retries come first. The result says the way."""
    for path, (direct, _) in WAYS.items():
        network.has(path, direct)
    once = {"url": f"{HOST}/once", "meta": {"url_id": "once", "dont_retry": True}}
    seeds = [once if path == "once" else path for path in WAYS]
    crawled = run(tmp_path, *seeds, SITE_PROXY_BODY_PATTERNS='["(?i)are you a ROBOT"]')
    assert {path: network.ways(path) for path in WAYS} == {path: ways for path, (_, ways) in WAYS.items()}
    for path, (_, ways) in WAYS.items():
        document = crawled.documents[path]
        assert document["proxy"] == ways[-1]
        if ways[-1] == ONE:
            assert (document["status"], document["description"], document["body"]) == (200, None, "<p>fine")
    assert [crawled.documents[path]["status"] for path in ("fine", "missing", "once")] == [200, 404, 403]
    assert (crawled.seeds["completed_with_failure"], crawled.lag) == (2, 0)


def test_fewer_attempts_than_configured_are_not_enough(tmp_path: Path, network: Network) -> None:
    """One retry makes two attempts. With 0 there is no proxy for that at all."""
    network.has("silent", DownloadTimeoutError("nobody there"))
    for number, limit in enumerate((3, 0)):
        crawled = run(tmp_path / str(number), "silent", SITE_PROXY_TIMEOUTS=limit)
        assert crawled.documents["silent"]["status"] is None
    assert set(network.ways("silent")) == {None}


def test_after_the_last_attempt_its_answer_is_the_result(tmp_path: Path, network: Network) -> None:
    """With its body, as without proxies; RETRY_TIMES does not multiply the attempts."""
    network.has("banned", 403, 403)
    network.has("broken", 403, 503)
    crawled = run(tmp_path, "banned", "broken", SITE_PROXIES=f"{ONE},{TWO}", SITE_PROXY_ATTEMPTS=2, RETRY_TIMES=5)
    for path, status in (("banned", 403), ("broken", 503)):
        ways = network.ways(path)
        assert ways[0] is None
        assert sorted(map(str, ways[1:])) == [ONE, TWO]  # not the same one twice
        document = crawled.documents[path]
        assert (document["status"], document["body"]) == (status, f"<p>{status}")
        assert document["proxy"] == ways[-1]
    assert crawled.seeds["completed_with_failure"] == 2


FAULTS: dict[str, tuple[Any, str]] = {
    "refused": (DownloadConnectionRefusedError("refused"), "cannot be connected to"),
    "late": (DownloadTimeoutError("too long"), "brought no answer in time"),
    "reset": (DownloadFailedError("reset"), "brought no answer (DownloadFailedError)"),
    "407": (407, "wants other credentials (HTTP 407)"),
    "tunnel-407": (TunnelError("[{'status': 407, 'reason': b''}]"), "wants other credentials (HTTP 407)"),
    "tunnel-403": (TunnelError("[{'status': 403, 'reason': b''}]"), "opens no tunnel (HTTP 403)"),
    "tunnel": (TunnelError("[b'garbage']"), "opens no tunnel"),
    "tunnel-502": (TunnelError("[{'status': 502, 'reason': b''}]"), "does not reach the site (HTTP 502)"),
    "half": (ResponseDataLossError("half"), "brought a part of the answer"),
}


def test_when_no_proxy_brings_an_answer_the_result_says_so(tmp_path: Path, network: Network) -> None:
    for path, (fault, _) in FAULTS.items():
        network.has(path, 403, fault)
    crawled = run(tmp_path, *FAULTS, SITE_PROXY_ATTEMPTS=2)
    for path, (_, said) in FAULTS.items():
        document = crawled.documents[path]
        described = f"ProxyFailed: {ONE} {said}, at attempt 2; without a proxy: HTTP 403 Forbidden"
        assert document["description"].startswith(described)
        assert (network.ways(path), document["status"], document["proxy"]) == ([None, ONE, ONE], None, ONE)
    assert crawled.lag == 0


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
            lengths.append(service.parts.queues.lengths())
            return super().parse(response)

    run(tmp_path, "refused", *paths, spider=Watching, CONCURRENT_REQUESTS_PER_DOMAIN=1)
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
    run(tmp_path, "begin", spider=Copying, SITE_PROXIES=WITH_CREDENTIALS, SITE_PROXY_ATTEMPTS=1)
    assert network.asked == [
        ("begin", None), ("begin", ONE), ("arrived", ONE), ("link", None), ("link", None),
    ]  # fmt: skip
    secret = b"Basic " + SECRETS[-1].encode()
    assert network.headers == [None, secret, secret, None, None]


def test_a_stop_while_all_proxies_rest_loses_nothing(tmp_path: Path, network: Network) -> None:
    network.has("refused", 403, DownloadConnectionRefusedError("dead"))
    assert run(tmp_path, "refused", until=lambda _crawler: bool(network.ways("refused")[1:])).lag == 1
    network.has("refused", 403)
    again = run(tmp_path)
    assert again.documents["refused"]["status"] == 200
    assert again.lag == 0


# --- The settings of proxies, and their file while it changes


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        ({"SITE_PROXIES": "http://u:hush@host"}, "SITE_PROXIES: number 1 is no proxy: host and port must be given"),
        ({"SITE_PROXIES": "no/such/file"}, "SITE_PROXIES (no/such/file): it cannot be read: No such file"),
        ({"SITE_PROXY_STATUSES": "403,banned"}, "SITE_PROXY_STATUSES is 'banned'"),
        ({"SITE_PROXY_BODY_PATTERNS": "["}, "SITE_PROXY_BODY_PATTERNS: '[' is no regular expression"),
        ({"SITE_PROXY_BODY_PATTERNS": '["a"'}, "SITE_PROXY_BODY_PATTERNS must be a JSON array"),
        ({"SITE_PROXY_ATTEMPTS": "0"}, "SITE_PROXY_ATTEMPTS is '0'"),
        ({"SITE_PROXY_TIMEOUTS": "-1"}, "SITE_PROXY_TIMEOUTS is '-1'"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, overrides: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError) as refused:
        run(tmp_path, **overrides)
    assert str(refused.value).startswith(said)
    assert "hush" not in str(refused.value)


def test_a_file_is_read_again_when_it_has_changed(
    tmp_path: Path, network: Network, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is bad, or gone, the last good list stays, and that is said once for each state."""
    monkeypatch.setattr(proxy_service, "LOOK_SECONDS", 0.02)
    caplog.set_level(logging.INFO, "site_spider.download.proxies")
    file = tmp_path / "proxies"
    file.write_text(f"# ours\n{WITH_CREDENTIALS}\n")
    steps = iter([f"{TWO}\nhttp://operator:hush%3Ahush@", None, f"{TWO}\n"])
    state: list[str] = []

    async def slow(request: Request) -> Response:
        """The page is there when the file has been through all its states."""
        for content in steps:
            file.unlink() if content is None else file.write_text(content)
            before = len(caplog.records)
            while len(caplog.records) == before:
                await asyncio.sleep(0.01)
            state.append(caplog.records[-1].getMessage())
            await asyncio.sleep(0.2)
            assert len(caplog.records) == before + 1
        return page(request, "", 403)

    def answer(request: Request) -> Any:
        network.asked.append(("slow", request.meta.get("proxy")))
        return slow(request) if request.meta.get("proxy") is None else page(request)

    engine.ANSWERS["/slow"] = answer
    crawled = run(tmp_path / "data", "slow", SITE_PROXIES=str(file))
    assert crawled.documents["slow"]["status"] == 200
    assert network.ways("slow") == [None, TWO]
    what = f"SITE_PROXIES ({file})"
    assert state == [
        f"{what}: line 2 is no proxy: host and port must be given; the 1 proxies read before stay",
        f"{what}: it cannot be read: No such file or directory; the 1 proxies read before stay",
        f"{what}: 1 proxies from now on",
    ]


def test_a_file_that_is_being_written_is_not_read_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only what has not changed between two looks counts: half a port is a port too."""
    path = tmp_path / "proxies"
    path.write_text(f"{ONE}\n")
    settings = Settings({"SITE_PROXIES": str(path)})
    settings.setmodule("site_spider.settings", priority="default")
    service = proxy_service.ProxyService(SimpleNamespace(settings=settings))  # type: ignore[arg-type]
    written = iter(["http://two.test:31", f"{TWO}\n", None, None])
    known: list[list[str]] = []

    async def sleep(_seconds: float) -> None:
        known.append([proxy.url for proxy in service.pool._health])
        if (content := next(written, "")) == "":
            raise asyncio.CancelledError
        if content is not None:
            path.write_text(content)

    monkeypatch.setattr(asyncio, "sleep", sleep)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(service._follow(path))
    assert known == [[ONE], [ONE], [ONE], [TWO], [TWO]]


# --- What no proxy gets: credentials of others, private hosts, robots.txt, a seed's choice


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
    loud = {"SITE_PROXIES": WITH_CREDENTIALS, "LOG_LEVEL": "DEBUG", "LOG_ENABLED": True}
    crawled = run(tmp_path, "echo", "fine", "moved", "banned", spider=Gossip, **loud)
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


def test_no_proxy_is_asked_for_a_private_host(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its address in whatever form, a name with a private address among others, one of metadata, or a redirect.

    Nor for a name that has no address here: it could have one where the proxy is.
    """
    addresses = proxy_service.addresses_of

    async def resolved(host: str) -> list[str]:
        return ["93.184.216.34", "10.0.0.1"] if host == "inside.test" else await addresses(host)

    monkeypatch.setattr(proxy_service, "addresses_of", resolved)
    network.has("refused", 403)
    network.has("begin", 403, lambda request: page(request, "", 302, Location="http://10.0.0.1/there"))
    network.has("there", 403)
    hosts = ("10.0.0.1", "127.1", "inside.test", "metadata.google.internal", "no-such.invalid", "8.8.8.8")
    seeds = [{"url": f"http://{host}/refused", "meta": {"url_id": host}} for host in hosts]
    seeds.append({"url": "http://8.8.8.8/begin", "meta": {"url_id": "begin"}})
    documents = run(tmp_path, *seeds, SITE_ALLOW_PRIVATE_HOSTS=False).documents
    for host in hosts[:4]:
        assert documents[host]["description"].startswith("PrivateHostError: ")
    assert documents["begin"]["description"].startswith("PrivateHostError: 10.0.0.1 has a private")
    assert documents["no-such.invalid"]["description"] == "DNSLookupError: no address for host no-such.invalid"
    assert documents["8.8.8.8"]["status"] == 200
    assert network.ways("refused").count(ONE) == 1
    assert (network.ways("begin"), network.ways("there")) == ([None, ONE], [])


def test_a_host_that_cannot_be_looked_up_now_is_asked_for_later(
    tmp_path: Path, network: Network, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For want of file descriptors; a resolver that says nothing at all is asked as often as proxies are."""
    asked: list[str] = []

    async def resolved(host: str) -> list[str]:
        asked.append(host)
        if host == "silent.test" or (host == "slow.test" and asked.count(host) == 1):
            raise TimeoutError
        if len(asked) < 3:
            raise DescriptorShortage
        return ["93.184.216.34"]

    monkeypatch.setattr(proxy_service, "addresses_of", resolved)
    network.has("refused", 403)
    hosts = ("short.test", "slow.test", "silent.test")
    seeds = [{"url": f"http://{host}/refused", "meta": {"url_id": host}} for host in hosts]
    documents = run(tmp_path, *seeds, SITE_ALLOW_PRIVATE_HOSTS=False).documents
    assert [documents[host]["status"] for host in hosts] == [200, 200, None]
    assert asked.count("silent.test") == 3
    assert documents["silent.test"]["description"].startswith("DNSLookupError: no address for host silent.test")


def test_silent_look_ups_of_one_page_do_not_count_for_where_it_redirects() -> None:
    route = proxy_service.Route(Mock(), "HTTP 403")
    route.begin("http://one.test/", Mock())
    route.silent = 2
    route.begin("http://two.test/", Mock())
    assert route.silent == 0


def test_robots_txt_is_never_asked_for_through_a_proxy(tmp_path: Path, network: Network) -> None:
    """A 403 for it is an answer (RFC 9309), not a refusal to get round."""
    network.has("robots.txt", 403)
    network.has("page", "<p>page")
    run(tmp_path, "page", ROBOTSTXT_OBEY=True)
    assert network.ways("robots.txt") == [None]


# --- Patterns of pages: what is found, and what RE2 does not take


def test_the_first_pattern_that_matches_is_named() -> None:
    """In the bytes as they came, UTF-8 for what is not ASCII; only in the beginning."""
    patterns = PagePatterns(["(?i)access denied", "Zugriff verweigert für", r"<title>\s*(Robot|Captcha)", "gr.n"])
    assert patterns.found(b"\xff<h1>ACCESS Denied</h1>") == "(?i)access denied"
    assert patterns.found("Zugriff verweigert für alle".encode()) == "Zugriff verweigert für"
    assert patterns.found(b"<title>\n Captcha") == r"<title>\s*(Robot|Captcha)"
    assert patterns.found(b"gr\xfcn") == "gr.n"
    assert patterns.found(b"fine") is None
    assert patterns.found(b" " * SEARCHED_BYTES + b"Access denied") is None


@pytest.mark.parametrize("pattern", ["[", "(", "*a", "a{2,1}", r"(a+)\1", "(?=a)b", "a\udcff"])
def test_what_re2_does_not_take_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match=r"^SITE_PROXY_BODY_PATTERNS: .* is no regular expression of RE2: "):
        PagePatterns(["fine", pattern])
