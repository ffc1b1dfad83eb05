"""Answers that make no sense, of a server that scripts them."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from itertools import repeat
from typing import Any

from site_spider.contracts.sink import Record
from site_spider.errors import SinkUnavailable
from tests.adapters.raw_server import PRODUCT, Asked, Said, said

KEYS = ["a", "b", "c"]
RECORDS = [Record(key, {"status": 200, "body": "text"}, 100) for key in KEYS]


def good(asked: Asked) -> bytes:
    """What Elasticsearch says to anything that the sink asks."""
    if "_bulk" in asked.path:
        return bulk([item(key) for key in asked.ids], errors=False)
    return said({"index_templates": []})


def item(key: Any, status: Any = 200, **more: Any) -> dict[str, Any]:
    return {"update": {"_id": key, "status": status, **more}}


def bulk(items: Any, errors: Any = False, **how: Any) -> bytes:
    return said({"errors": errors, "items": items}, **how)


def settings_for(address: str) -> dict[str, Any]:
    return {"SITE_ELASTICSEARCH_HOSTS": address, "SITE_RESULTS_INDEX": "results", "SITE_STATS_INDEX": "stats"}


def everywhere(status: int = 200) -> Iterator[bytes]:
    """Headers without end."""
    yield b"HTTP/1.1 %d OK\r\n" % status
    yield from repeat(b"X-More: " + b"x" * 1000 + b"\r\n")


def endless() -> Iterator[bytes]:
    """A body without end, in chunks."""
    yield (b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n%b\r\n" % PRODUCT)
    yield from repeat(b"10000\r\n" + b" " * 65536 + b"\r\n")


@cache
def bomb() -> bytes:
    """100 MB of blanks in 100 KB."""
    packer = zlib.compressobj(9, wbits=31)
    packed = b"".join(packer.compress(b" " * 1_000_000) for _ in range(100)) + packer.flush()
    return said(packed, more=b"Content-Encoding: gzip\r\n")


GOOD = [item(key) for key in KEYS]
ODD: dict[str, Said | Callable[[], Said]] = {
    "html": said(b"<html>\x1b[2Jplease log in</html>", kind="text/html"),
    "html as json": said(b"<html>please log in</html>"),
    "html with an error": said(b"<html>bad request</html>", status=400, kind="text/html"),
    "error as text": said({"error": "no such thing", "status": 400}, status=400),
    "error as a list": said({"error": [1], "status": 400}, status=400),
    "error as a list in a list": said([[1]], status=400),
    "error that is null": said(b"null", status=500),
    "error with a type that is a list": said({"error": {"type": ["x"], "reason": {}}}, status=400),
    "strange words": said({"error": {"type": "x", "caused_by": "y"}}, status=503),
    "null": said(b"null"),
    "list": said([1, 2, 3]),
    "number": said(b"7"),
    "text": said(b'"ok"'),
    "nothing": said(b""),
    "no content": b"HTTP/1.1 204 No Content\r\n" + PRODUCT + b"\r\n",
    "unknown kind": said(b"{}", kind="application/strange"),
    "nested": said(b"[" * 200_000),
    "nested error": said(b"[" * 200_000, status=400),
    "deep error": said(b'{"error":' + b'{"caused_by":' * 900 + b"{}" + b"}" * 901, status=503),
    "long number": said(b"1" * 10_000),
    "bad utf-8": said(b'{"errors":false,"items":["\xff\xfe"]}'),
    "half": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{",
    "truncated": said(b'{"errors":false,"items":['),
    "no http": b"SSH-2.0-OpenSSH_9.2\r\n",
    "nothing at all": b"",
    "no items": said({"errors": False}),
    "items null": bulk(None),
    "items as a mapping": bulk({"update": {}}),
    "items as text": bulk("abc"),
    "items of text": bulk(["update"] * 3),
    "items without update": bulk([{"index": {"_id": key, "status": 200}} for key in KEYS]),
    "items with null": bulk([{"update": None}] * 3),
    "items with lists": bulk([{"update": []}] * 3),
    "fewer": bulk(GOOD[:2]),
    "more": bulk([*GOOD, item("d")]),
    "none": bulk([]),
    "other order": bulk(GOOD[::-1]),
    "wrong ids": bulk([item("x") for _ in KEYS]),
    "ids as numbers": bulk([item(7) for _ in KEYS]),
    "no ids": bulk([{"update": {"status": 200}}] * 3),
    "status as text": bulk([item(key, "200") for key in KEYS]),
    "status as true": bulk([item(key, True) for key in KEYS]),
    "status as a fraction": bulk([item(key, 200.5) for key in KEYS]),
    "status null": bulk([item(key, None) for key in KEYS]),
    "status 0": bulk([item(key, 0) for key in KEYS]),
    "no status": bulk([{"update": {"_id": key}} for key in KEYS]),
    "errors as text": bulk(GOOD, errors="no"),
    "errors null": bulk(GOOD, errors=None),
    "errors that are none": bulk(GOOD, errors=True),
    "no errors and yet some": bulk([item("a", 400, error={"type": "x"}), *GOOD[1:]]),
    "a redirect to itself": said(b"", status=302, more=b"Location: /\r\n"),
    "bomb": bomb,
    "endless headers": everywhere,
    "endless body": endless,
}


def odd(name: str) -> Said:
    answer = ODD[name]
    return answer() if callable(answer) else answer


def complaint(action: Callable[[], Any]) -> str:
    """What SinkUnavailable says that it raises; empty if it raises nothing."""
    try:
        action()
    except SinkUnavailable as error:
        return str(error)
    return ""
