"""Headers of a seed on requests for its links."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from tests.in_process.engine import ANSWERS, crawl, page
from tests.in_process.extraction import in_a_thread

SEED = {
    "url": "http://h.test/list",
    "headers": {"Authorization": "Bearer x", "X-Tenant": ["a", "b"], "If-None-Match": "w"},
}
SOURCE = "name: other\nmatch: {hosts: [other.test]}\nrequest: {seed_headers: true, headers: {X-Tenant: its own}}\n"
PATHS = ("/list", "/leaf", "/moved", "/there")
ALL = {b"Authorization": [b"Bearer x"], b"X-Tenant": [b"a", b"b"]}


@pytest.fixture
def seen() -> Iterator[dict[str, Request]]:
    """What was asked for, by host and path."""
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
