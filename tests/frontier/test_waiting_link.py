"""Links that wait as tuples, and requests that become messages."""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import FormRequest, Request
from scrapy.http import Response
from scrapy.utils.request import fingerprint

from site_spider import meta_keys
from site_spider.contracts.seed_log import Partition
from site_spider.engine.callback_guard import guarded
from site_spider.frontier.spill import SeedWriter
from site_spider.frontier.waiter import as_link, as_request
from site_spider.intake.seed_queue import seed_request
from site_spider.ledger import completion
from site_spider.ledger.completion import Job
from site_spider.ledger.ledger import SeedInFlight
from site_spider.seed.seed import parse_seed
from site_spider.seed.spilled import Spilled
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process.engine import ANSWERS, crawl, page
from tests.in_process.extraction import in_a_thread

URL = "http://h.test/leaf?a=1"
PARTITION = Partition("seeds", 0)


class Spider(SeedSpider):
    """With a second callback that seeds may name."""

    seed_callbacks = ("parse", "parse_list")

    def parse_list(self, response: Any) -> None:
        """As a user's."""


def begun(value: bytes) -> tuple[Request, Job]:
    entry = SeedInFlight(PARTITION, 0, 1)
    entry.reads(parse_seed(value, frozenset(Spider.seed_callbacks)))
    return seed_request(entry, Spider())


def root_of(value: bytes = b'{"url": "http://h.test/", "meta": {"url_id": "r", "task_id": "t"}}') -> Job:
    return begun(value)[1]


def link(kind: type[Request] = Request, **fields: Any) -> tuple[Request, Job]:
    meta = {"depth": 2, **fields.pop("meta", {})}
    request = kind(URL, meta=meta, priority=fields.pop("priority", 1), **fields)
    parent = root_of()
    job = request.meta[meta_keys.JOB] = Job(request, parent.entry, parent)
    return request, job


def callback(response: Any) -> None:
    """Somebody's."""


@pytest.mark.parametrize("headers", [{}, {"Referer": "http://h.test/"}])
def test_a_plain_link_comes_out_as_it_went_in(headers: dict[str, str]) -> None:
    request, job = link(headers=headers, priority=3)
    waiting = as_link(request, job)
    assert waiting is not None
    made, its_job = as_request(waiting)
    assert made.to_dict() | {"meta": 0} == request.to_dict() | {"meta": 0}
    assert fingerprint(made) == fingerprint(request)
    assert made.meta.keys() == request.meta.keys()
    assert made.meta["depth"] == 2
    assert completion.job_of(made) is its_job
    assert (its_job.parent, its_job.entry, its_job.depth) == (job.parent, job.entry, job.depth)


def test_links_of_a_page_have_one_referer_that_is_not_interned() -> None:
    """Python 3.12 never frees what is: 150 bytes for each page with links, 15 GB in 100 million."""
    url = f"http://h.test/{secrets.token_hex()}"
    first, second = (as_link(*link(headers={"Referer": url})) for _ in range(2))
    assert first is not None
    assert second is not None
    assert first.referer is second.referer
    assert sys.intern("".join([*url])) is not first.referer


def named(fields: dict[str, Any]) -> str:
    """Without the address of a function: all workers collect the same names."""
    return str({key: getattr(value, "__name__", value) for key, value in fields.items()})


class RenderedRequest(Request):
    """As that of scrapy-selenium: its middleware knows it by its class, and fetches any other without a browser."""


OWN: list[dict[str, Any]] = [  # what neither a tuple nor a message can say
    *({"callback": callback}, {"errback": callback}, {"meta": {"own": 1}}, {"cookies": {"a": "1"}}),
    *({"flags": ["own"]}, {"cb_kwargs": {"a": 1}}, {"kind": RenderedRequest}),
]


@pytest.mark.parametrize(
    "fields",
    [
        *OWN,
        *({"method": "POST"}, {"body": b"x"}, {"dont_filter": True}, {"encoding": "latin-1"}),
        {"headers": {"X-Own": "1"}},
        {"headers": {"Referer": "http://h.test/", "X-Own": "1"}},
        {"headers": {"Referer": ["http://h.test/", "http://h.test/2"]}},
        {"headers": {"Referer": "http://h.test/ö".encode()}},
        {"kind": FormRequest},
    ],
    ids=named,
)
def test_whatever_has_something_of_its_own_waits_as_it_is(fields: dict[str, Any]) -> None:
    request, job = link(**fields)
    assert as_link(request, job) is None


@pytest.mark.parametrize(
    ("url", "encoding"),
    [
        ("http://h.test/a", "utf-8"),
        ("http://h.test/a?b=~c", "shift_jis"),
        ("http://h.test/?a[]=b", "utf-8"),
        ("http://h.test/?a=\u00e9", "latin-1"),
    ],
)
def test_the_request_of_a_seed_has_the_url_that_scrapy_makes_of_it(url: str, encoding: str) -> None:
    """And nothing in its meta says that it need not be looked at, for a redirect would copy that."""
    value = json.dumps({"url": url, "_encoding": encoding}).encode()
    request, _ = begun(value)
    assert request.url == Request(url, encoding=encoding).url
    assert meta_keys.VERBATIM_URL not in request.meta


# --- messages ------------------------------------------------------------------------------------


def writer(cookies: dict[str, str] | None = None) -> SeedWriter:
    return SeedWriter(SPIDER, lambda request, entry: cookies or {})


SPIDER = Spider()


@pytest.mark.parametrize(
    "fields",
    [
        *OWN,
        *({"meta": meta} for meta in ({"proxy": "http://p.test"}, {"download_slot": "there"}, {"cookiejar": "mine"})),
        {"headers": {"Host": "other.test"}},
        {"headers": {"X-Own": b"\xff"}},
        {"body": b"\xff\xfe", "method": "POST"},
    ],
    ids=named,
)
@pytest.mark.parametrize("is_link", [True, False])
def test_what_a_seed_cannot_say_has_no_message(fields: dict[str, Any], is_link: bool) -> None:
    request, job = link(**fields)
    assert writer().write(request, job, is_link=is_link) is None


def test_a_link_is_said_with_all_that_it_has() -> None:
    request, job = link(
        callback=SPIDER.parse_list,
        method="POST",
        body="größe".encode("latin-1"),
        encoding="latin-1",
        headers={"X-Own": ["1", "2"], "Cookie": "old=1"},
        meta={"max_retry_times": 5, "dont_redirect": True},
        priority=-7,
    )
    job.entry.anchor_host = "anchor.test"
    assert job.parent is not None
    job.parent.url_id = "p"
    message = writer({"session": "42"}).write(request, job, is_link=True)
    assert message is not None
    key, value = message
    seed = parse_seed(value, frozenset(Spider.seed_callbacks))
    assert key == b"h.test"
    assert (seed.url, seed.method, seed.body, seed.encoding) == (URL, "POST", request.body, "latin-1")
    assert (seed.priority, seed.callback, seed.depth) == (-7, "parse_list", 2)
    assert seed.headers == (("X-Own", "1"), ("X-Own", "2"))
    assert seed.cookies == {"session": "42"}
    assert seed.directives == {"max_retry_times": 5, "dont_redirect": True}
    assert (seed.url_id, seed.parent_url_id, seed.seed_url_id, seed.task_id) == (job.url_id, "p", "r", "t")
    assert seed.spilled == Spilled(anchor_host="anchor.test", scope_host=".")
    assert seed.extra == {}


def test_an_attempt_goes_on_with_its_document_and_its_counts() -> None:
    """What the downloader's middlewares left on it is no hindrance; guarded callbacks are seen through."""
    value = b'{"url": "http://h.test/first", "meta": {"url_id": "mine", "NotExtract": true, "colour": null}}'
    root = root_of(value)
    request = Request(
        "http://other.test/",
        method="HEAD",
        callback=guarded(SPIDER.parse, 1),
        errback=guarded(SPIDER.failed, 1),
        headers={"User-Agent": "us"},
        priority=2,
        dont_filter=True,
        meta={
            "depth": 0,
            "download_timeout": 30.0,
            "download_latency": 0.1,
            "cookiejar": root.entry,
            "retry_times": 1,
            "site_retry_reasons": ["500 Internal Server Error"],
            "redirect_times": 1,
            "redirect_ttl": 19,
            "redirect_urls": ["http://h.test/first"],
            "redirect_reasons": [302],
            meta_keys.UNRAISED_PRIORITY: 0,
            meta_keys.PAGE_NUMBER: 3,
            meta_keys.KNOWN_RUN: (4, 5),
            meta_keys.JOB: root,
        },
    )
    message = writer().write(request, root, is_link=False)
    seed = parse_seed(message[1])
    made, job = begun(message[1])
    gone = {"cookiejar", "download_latency", meta_keys.JOB}
    assert made.meta == {key: value for key, value in request.meta.items() if key not in gone}
    assert (made.url, made.method, made.priority) == (request.url, "HEAD", 2)
    assert (job.url, job.method, job.url_id) == ("http://h.test/first", "GET", "mine")
    assert seed.not_extract
    assert seed.extra == {"colour": None}
    first = completion.first_request(made, job)
    assert fingerprint(first) == fingerprint(Request("http://h.test/first"))


@pytest.mark.parametrize("is_link", [True, False])
def test_a_page_of_a_list_goes_on_with_its_place_in_it(is_link: bool) -> None:
    """Also a later attempt at it: else a list without an end would go on for ever."""
    place = {meta_keys.PAGE_NUMBER: 3, meta_keys.KNOWN_RUN: (2, 1_700_000_000_000)}
    message = writer().write(*link(meta=place), is_link=is_link)
    assert message is not None
    made, _ = begun(message[1])
    assert {name: made.meta.get(name) for name in place} == place


# --- headers of a seed on requests for its links ---------------------------------------------------------

SEED = {
    "url": "http://h.test/list",
    "headers": {"Authorization": "Bearer x", "X-Tenant": ["a", "b"], "If-None-Match": "w"},
}
SOURCE = "name: other\nmatch: {hosts: [other.test]}\nrequest: {seed_headers: true, headers: {X-Tenant: its own}}\n"
PATHS = ("/list", "/leaf", "/moved", "/there")
ALL = {b"Authorization": [b"Bearer x"], b"X-Tenant": [b"a", b"b"]}


@pytest.fixture
def seen() -> Iterator[dict[str, Request]]:
    asked: dict[str, Request] = {}

    def answer(request: Request) -> Response:
        asked[request.url.removeprefix("http://")] = request
        if request.url.endswith("/moved"):
            return page(request, "", 302, Location="http://third.test/there")
        return page(request, "<a href=/leaf>x</a><a href=/moved>x</a><a href=http://other.test/leaf>x</a>")

    ANSWERS.update(dict.fromkeys(PATHS, answer))
    yield asked
    for path in PATHS:
        del ANSWERS[path]


def headers(request: Request) -> dict[bytes, list[bytes]]:
    return {name: values for name, values in request.headers.items() if name in {*ALL, b"If-None-Match"}}


@pytest.mark.parametrize("links_to", ["memory", "kafka"])
def test_headers_of_a_seed_go_with_its_links_where_the_setting_says_so(
    tmp_path: Path, seen: dict[str, Request], links_to: str
) -> None:
    """Also through the seed topic. Secrets stay on its host, and so does what is about its page."""
    settings: dict[str, Any] = {"SITE_LINK_SCOPE": "any", "SITE_LINKS_TO": links_to}
    crawl(tmp_path, [SEED], SITE_SEED_META_KEYS="headers", **settings)
    assert headers(seen["h.test/list"]) == ALL | {b"If-None-Match": [b"w"]}
    assert headers(seen["h.test/leaf"]) == ALL
    assert headers(seen["other.test/leaf"]) == {b"X-Tenant": [b"a", b"b"]}
    assert b"Authorization" not in headers(seen["third.test/there"])


@in_a_thread()
def test_headers_of_a_seed_go_with_links_of_a_source_that_says_so(tmp_path: Path, seen: dict[str, Request]) -> None:
    """They count more than those of the source; other links have none."""
    folder = tmp_path / "sources"
    folder.mkdir()
    (folder / "other.yaml").write_text(SOURCE)
    crawl(tmp_path / "data", [SEED], SITE_LINK_SCOPE="any", SITE_SOURCES_DIR=str(folder))
    assert headers(seen["other.test/leaf"]) == {b"X-Tenant": [b"a", b"b"]}
    assert headers(seen["h.test/leaf"]) == {}
