"""What of a body is kept: all of a small one, the beginning of a large one, binary content on request."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page

LIMIT = 1000
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8


def binary(body: bytes) -> Callable[[Request], Response]:
    return lambda request: Response(request.url, headers={"Content-Type": "image/png"}, body=body)


def encoded(text: str, charset: str) -> Callable[[Request], Response]:
    headers = {"Content-Type": f"text/html; charset={charset}"}
    return lambda request: Response(request.url, headers=headers, body=text.encode(charset))


SITE: dict[str, engine.Answer] = {
    "/short": lambda request: page(request, "<p>short"),
    "/exact": lambda request: page(request, "x" * LIMIT),
    "/one-more": lambda request: page(request, "x" * (LIMIT + 1)),
    "/exact-in-characters-of-two": lambda request: page(request, "é" * (LIMIT // 2)),
    "/boundary": lambda request: page(request, "x" + "é" * LIMIT),
    "/boundary-of-four": lambda request: page(request, "xyz" + "🎉" * LIMIT),
    "/latin": encoded("é" * LIMIT, "windows-1252"),
    "/links": lambda request: page(request, "x" * LIMIT + "<a href=/behind-the-cut>"),
    "/large": lambda request: page(request, "x" * 300_000 + "<a href=/behind-the-large-cut>"),
    "/not-found": lambda request: page(request, "x" * (LIMIT + 1), 404),
    "/empty": lambda request: page(request, ""),
    "/binary": binary(PNG),
    "/binary-short": binary(PNG[:LIMIT]),
    "/binary-empty": binary(b""),
}


def crawl_site(folder: Path, **settings: Any) -> Crawled:
    engine.ANSWERS.update(SITE)
    seeds = [{"url": f"http://h.test{path}", "meta": {"url_id": path}} for path in SITE]
    return crawl(folder, seeds, SITE_BODY_MAX_BYTES=LIMIT, **settings)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The documents when binary content is not kept."""
    return crawl_site(tmp_path_factory.mktemp("plain")).documents


@pytest.fixture(scope="module")
def keeping(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """The documents when it is."""
    return crawl_site(tmp_path_factory.mktemp("keeping"), SITE_KEEP_BINARY="true").documents


@pytest.mark.parametrize("path", ["/short", "/exact", "/exact-in-characters-of-two", "/empty"])
def test_a_body_within_the_limit_is_whole_and_not_marked(path: str, plain: dict[str, dict[str, Any]]) -> None:
    """Up to the last byte; the field is left out, not false."""
    document = plain[path]
    assert len(document["body"].encode()) == document["response_size"]
    assert document["body_truncated"] is False


@pytest.mark.parametrize(
    ("path", "body", "size"),
    [
        ("/one-more", "x" * LIMIT, LIMIT + 1),
        ("/boundary", "x" + "é" * 499, 1 + 2 * LIMIT),
        ("/boundary-of-four", "xyz" + "🎉" * 249, 3 + 4 * LIMIT),
        ("/latin", "é" * 500, LIMIT),
        ("/not-found", "x" * LIMIT, LIMIT + 1),
    ],
)
def test_a_longer_body_is_cut_between_two_characters(
    path: str, body: str, size: int, plain: dict[str, dict[str, Any]]
) -> None:
    """The limit counts in UTF-8, whatever the page came in; the size stays that of the answer."""
    document = plain[path]
    assert document["body"] == body
    assert document["body_truncated"] is True
    assert document["response_size"] == size


@pytest.mark.parametrize(
    ("path", "link"), [("/links", "/behind-the-cut"), ("/large", "/behind-the-large-cut")]
)
def test_links_behind_the_cut_are_followed(path: str, link: str, plain: dict[str, dict[str, Any]]) -> None:
    """They are found in the whole body, also when that is read in a thread."""
    assert plain[path]["body_truncated"] is True
    assert "href" not in plain[path]["body"]
    child = next(d for d in plain.values() if d.get("parent_url_id") == path)
    assert child["url"] == f"http://h.test{link}"


@pytest.mark.parametrize("path", ["/binary", "/binary-short", "/binary-empty"])
def test_binary_content_is_not_kept_by_default(path: str, plain: dict[str, dict[str, Any]]) -> None:
    """Its size is, and nothing that was not kept counts as cut."""
    document = plain[path]
    assert not document["body"]
    assert document["body_base64"] is None
    assert document["body_truncated"] is False
    assert document["response_size"] == len(SITE[path](Request("http://h.test/")).body)  # type: ignore[union-attr]


def test_binary_content_is_kept_on_request(keeping: dict[str, dict[str, Any]]) -> None:
    """Byte by byte, in base64, and `body` stays null."""
    document = keeping["/binary-short"]
    assert base64.b64decode(document["body_base64"], validate=True) == PNG[:LIMIT]
    assert document["body"] is None
    assert document["body_truncated"] is False


def test_the_limit_counts_for_binary_content_too(keeping: dict[str, dict[str, Any]]) -> None:
    """It counts the bytes, not the base64; the size stays that of the answer."""
    document = keeping["/binary"]
    assert base64.b64decode(document["body_base64"], validate=True) == PNG[:LIMIT]
    assert document["body_truncated"] is True
    assert document["response_size"] == len(PNG)


@pytest.mark.parametrize("path", ["/short", "/empty", "/binary-empty", "/one-more"])
def test_text_and_nothing_have_no_base64(path: str, keeping: dict[str, dict[str, Any]]) -> None:
    """Keeping binary content changes nothing for other results."""
    assert keeping[path]["body_base64"] is None
