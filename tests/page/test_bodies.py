"""What of a body is kept: all of a small one, the beginning of a large one, binary content on request."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from tests.in_process import engine
from tests.in_process.engine import crawl, page

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


Documents = dict[str, dict[str, Any]]


@pytest.fixture(scope="module", params=[False, True])
def documents(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Documents:
    """By path; of two crawls, the second of which keeps binary content."""
    engine.ANSWERS.update(SITE)
    seeds = [{"url": f"http://h.test{path}", "meta": {"url_id": path}} for path in SITE]
    settings = {"SITE_BODY_MAX_BYTES": LIMIT, "SITE_KEEP_BINARY": request.param}
    return {"keeps": {"binary": request.param}, **crawl(tmp_path_factory.mktemp("x"), seeds, **settings).documents}


CUT = {
    "/one-more": ("x" * LIMIT, LIMIT + 1),
    "/boundary": ("x" + "é" * 499, 1 + 2 * LIMIT),
    "/boundary-of-four": ("xyz" + "🎉" * 249, 3 + 4 * LIMIT),
    "/latin": ("é" * 500, LIMIT),
    "/not-found": ("x" * LIMIT, LIMIT + 1),
}


def test_a_body_within_the_limit_is_whole_and_a_longer_one_is_cut_between_two_characters(documents: Documents) -> None:
    """The limit counts in UTF-8, whatever the page came in; the size stays that of the answer."""
    for path in ("/short", "/exact", "/exact-in-characters-of-two", "/empty"):
        found = documents[path]
        assert (len(found["body"].encode()), found["body_truncated"]) == (found["response_size"], False), path
    for path, (body, size) in CUT.items():
        found = documents[path]
        assert (found["body"], found["body_truncated"], found["response_size"]) == (body, True, size), path
        assert found["body_base64"] is None


def test_links_behind_the_cut_are_followed(documents: Documents) -> None:
    """They are found in the whole body, also when that is read in a thread."""
    for path, link in (("/links", "/behind-the-cut"), ("/large", "/behind-the-large-cut")):
        assert documents[path]["body_truncated"] is True
        assert "href" not in documents[path]["body"]
        (child,) = (found for found in documents.values() if found.get("parent_url_id") == path)
        assert child["url"] == f"http://h.test{link}"


def test_binary_content_is_kept_up_to_the_limit_by_choice(documents: Documents) -> None:
    """In base64; nothing that was not kept counts as cut. Its size is that of the answer."""
    keeps = documents["keeps"]["binary"]
    for path, whole in (("/binary", PNG), ("/binary-short", PNG[:LIMIT]), ("/binary-empty", b"")):
        found = documents[path]
        kept = found["body_base64"]
        assert not found["body"]
        assert (kept and base64.b64decode(kept, validate=True)) == (whole[:LIMIT] if keeps and whole else None)
        assert found["body_truncated"] is (keeps and len(whole) > LIMIT)
        assert found["response_size"] == len(whole)
