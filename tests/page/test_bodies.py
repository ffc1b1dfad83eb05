"""What of a body is kept: all of a small one, the beginning of a large one, binary content on request."""

from __future__ import annotations

import base64
from collections.abc import Callable
from pathlib import Path

import pytest
from scrapy import Request
from scrapy.http import Response

from tests.in_process import engine
from tests.in_process.engine import crawl, page

LIMIT = 1000
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256)) * 8


def binary(body: bytes) -> Callable[[Request], Response]:
    return lambda request: Response(request.url, headers={"Content-Type": "image/png"}, body=body)


SITE: dict[str, engine.Answer] = {
    "/exact": lambda request: page(request, "é" * (LIMIT // 2)),
    "/cut": lambda request: page(request, "x" + "é" * LIMIT),
    "/links": lambda request: page(request, "x" * LIMIT + "<a href=/behind-the-cut>"),
    "/large": lambda request: page(request, "x" * 300_000 + "<a href=/behind-the-large-cut>"),
    "/not-found": lambda request: page(request, "x" * (LIMIT + 1), 404),
    "/binary": binary(PNG),
    "/binary-short": binary(PNG[:LIMIT]),
    "/binary-empty": binary(b""),
}
TEXTS = {  # body, whether it was cut, size of the answer
    "/exact": ("é" * (LIMIT // 2), False, LIMIT),
    "/cut": ("x" + "é" * 499, True, 1 + 2 * LIMIT),
    "/not-found": ("x" * LIMIT, True, LIMIT + 1),
}


@pytest.mark.parametrize("keeps", [False, True])
def test_what_is_kept_of_a_body_and_that_links_behind_it_are_followed(tmp_path: Path, keeps: bool) -> None:
    """The limit counts in UTF-8; binary content is kept by choice, in base64. Sizes are those of the answers."""
    engine.ANSWERS.update(SITE)
    seeds = [{"url": f"http://h.test{path}", "meta": {"url_id": path}} for path in SITE]
    documents = crawl(tmp_path, seeds, SITE_BODY_MAX_BYTES=LIMIT, SITE_KEEP_BINARY=keeps).documents
    for path, expected in TEXTS.items():
        found = documents[path]
        assert (found["body"], found["body_truncated"], found["response_size"]) == expected, path
        assert found["body_base64"] is None
    for path, link in (("/links", "/behind-the-cut"), ("/large", "/behind-the-large-cut")):
        (child,) = (found for found in documents.values() if found.get("parent_url_id") == path)
        assert (documents[path]["body_truncated"], child["url"]) == (True, f"http://h.test{link}")
    for path, whole in (("/binary", PNG), ("/binary-short", PNG[:LIMIT]), ("/binary-empty", b"")):
        found = documents[path]
        kept = found["body_base64"]
        assert not found["body"]
        assert (kept and base64.b64decode(kept, validate=True)) == (whole[:LIMIT] if keeps and whole else None)
        assert (found["body_truncated"], found["response_size"]) == (keeps and len(whole) > LIMIT, len(whole))
