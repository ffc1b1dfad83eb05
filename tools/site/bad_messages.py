"""Messages that are not valid seeds: each must become a dead letter, and none may be fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

KEY = b"127.0.1.1"


class BadMessage(NamedTuple):
    """A message and a word that its dead letter's `error` header must contain."""

    name: str
    key: bytes | None
    value: bytes | None
    word: str  # a regular expression, upper and lower case alike

    def explains(self, error: str) -> bool:
        return re.search(self.word, error, re.IGNORECASE) is not None


def bad_messages(port: int) -> list[BadMessage]:
    """One of each sort. The URLs lie under /never/, so that a fetch shows in the site's record."""
    sorts = (_not_json, _wrong_urls, _wrong_fields, _forbidden, _encodings)
    found = enumerate(bad for sort in sorts for bad in sort(port))
    return [BadMessage(name, None if n % 9 == 8 else KEY, *more) for n, (name, *more) in found]


_Bad = tuple[str, bytes | None, str]


def _url(port: int, name: str) -> str:
    return f"http://127.0.1.1:{port}/never/{re.sub(r'[^a-z0-9]+', '-', name.lower())}"


def _raw(port: int, name: str, rest: str) -> bytes:
    return f'{{"url": "{_url(port, name)}"{rest}}}'.encode()


def _not_json(port: int) -> Iterator[_Bad]:
    yield "null value", None, r"tombstone|null|empty|no value|None"
    yield "empty message", b"", r"empty|JSON"
    yield "blanks only", b" \n\t ", r"empty|JSON|blank"
    yield "no JSON", b"http://127.0.1.1/never/plain", r"JSON"
    yield "cut JSON", _raw(port, "cut", "")[:-1], r"JSON"
    yield "two documents", _raw(port, "two", "") + b"{}", r"JSON|extra"
    yield "single quotes", b"{'url': 'http://127.0.1.1/never/quotes'}", r"JSON"
    yield "invalid UTF-8", b'{"url": "http://127.0.1.1/never/\xff\xfe"}', r"UTF-?8|decode|encod"
    yield "top level list", b'["http://127.0.1.1/never/list"]', r"object|dict|list|array"
    yield "top level text", b'"http://127.0.1.1/never/text"', r"object|dict|str|text"
    yield "top level number", b"42", r"object|dict|int|number"
    yield "top level null", b"null", r"object|dict|null|None"
    twice = r"duplicate|twice|repeat|more than once"
    yield "duplicate keys", _raw(port, "dup", ', "url": "http://127.0.1.1/"'), twice
    yield "duplicate keys in meta", _raw(port, "dup2", ', "meta": {"a": 1, "a": 2}'), twice
    yield "NaN", _raw(port, "nan", ', "priority": NaN'), r"NaN|JSON|constant|number|priority"
    yield "Infinity", _raw(port, "inf", ', "priority": -Infinity'), r"Infinity|JSON|constant|number|priority"
    yield "overflowing number", _raw(port, "float", ', "priority": 1e999'), r"priority|number|range|inf"
    digits = _raw(port, "digits", f', "priority": {"9" * 5000}')
    yield "very long number", digits, r"priority|number|digit|JSON|integer|large"
    yield "deep lists", b"[" * 100_000, r"nest|deep|depth|recursion|JSON|long|large"
    deep = ', "meta": {"a": ' + "[" * 20_000 + "]" * 20_000 + "}"
    yield "deep meta", _raw(port, "deep", deep), r"nest|deep|depth|recursion"
    big = json.dumps({"url": _url(port, "big") + "x" * 990_000}).encode()
    yield "1 MB, nearly all of it URL", big, r"large|long|big|size|bytes|limit|url"


def _wrong_urls(port: int) -> Iterator[_Bad]:
    place = f"127.0.1.1:{port}"
    urls: dict[str, Any] = {
        "null": None,
        "a number": 5,
        "a list": [f"http://{place}/never/list"],
        "empty": "",
        "without host": "http:///never/host",
        "scheme only": "http://",
        "without scheme": f"{place}/never/scheme",
        "relative": "/never/relative",
        "scheme-relative": f"//{place}/never/relative",
        "with a space in the path": f"http://{place}/never/a b",
        "with a space in the host": "http://127.0.1.1 /never/space",
        "with a line break": f"http://{place}/never/a\r\nX-Injected: yes",
        "with a tab": f"http://{place}/never/a\tb",
        "with NUL": f"http://{place}/never/a\x00b",
        "with DEL": f"http://{place}/never/a\x7fb",
        "with half a surrogate": f"http://{place}/never/\ud800",
        "over 8 KiB": f"http://{place}/never/{'a' * 8200}",
        "with a port out of range": "http://127.0.1.1:99999/never/port",
        "with a port that is a word": "http://127.0.1.1:http/never/port",
        "with half brackets": "http://[::1/never/bracket",
    }
    yield "no URL", json.dumps({"meta": {"url_id": "bad-no-url"}}).encode(), r"url"
    for name, url in urls.items():
        yield f"URL {name}", json.dumps({"url": url}).encode(), r"url"
    odd = f"ftp://{place}/never/ftp file:///etc/passwd data:text/html,never javascript:never() s3://bucket/never"
    for url in odd.split():
        scheme = url.partition(":")[0]
        yield f"scheme {scheme}", json.dumps({"url": url}).encode(), rf"{scheme}|scheme"


_FIELDS: dict[str, list[Any]] = {
    "meta": [["NotExtract"], "NotExtract"],
    "method": [5, ["GET"], "FETCH", "GET / HTTP/1.1\r\nX-Injected: yes\r\n"],
    "_encoding": [8],
    "headers": ["X-A: 1", {"X-A": {"b": 1}}, {"X-A": "1\r\nX-Injected: yes"}, {"X-A\r\nX-Injected": "yes"}],
    "cookies": ["a=1"],
    "body": [5, {"a": 1}],
    "priority": ["high", [1]],
    "dont_filter": ["perhaps"],
    "callback": [5, "os.system", "__init__"],
    "errback": ["parse", "os.system"],
    "cb_kwargs": [{"response": 1}],
    "flags": [["cached"]],
    "_class": ["subprocess.Popen", "scrapy.http.FormRequest"],
}
_META: dict[str, list[Any]] = {
    "url_id": [["a"], {"a": 1}, "x" * 600],
    "depth": ["deep", -1],
    "NotExtract": ["perhaps", [1]],
}


def _wrong_fields(port: int) -> Iterator[_Bad]:
    for name, values in _FIELDS.items():
        for number, value in enumerate(values):
            seed = {"url": _url(port, f"{name} {number}"), name: value}
            yield f"{name} is {value!r:.40}", json.dumps(seed).encode(), name
    for name, values in _META.items():
        for number, value in enumerate(values):
            seed = {"url": _url(port, f"meta {name} {number}"), "meta": {name: value}}
            yield f"meta {name} is {value!r:.40}", json.dumps(seed).encode(), name


def _forbidden(port: int) -> Iterator[_Bad]:
    keys = (
        "proxy bindaddress download_slot download_maxsize http_user http_pass "
        "dont_obey_robotstxt allow_offsite cookiejar"
    )
    for key in keys.split():
        seed: dict[str, Any] = {"url": _url(port, key), "meta": {key: "http://127.0.0.1:9/"}}
        yield f"meta {key}", json.dumps(seed).encode(), key
    for header in ("Host", "host", "Proxy-Authorization", "PROXY-AUTHORIZATION"):
        seed = {"url": _url(port, header), "headers": {header: "example.test"}}
        yield f"header {header}", json.dumps(seed).encode(), header


def _encodings(port: int) -> Iterator[_Bad]:
    seeds: dict[str, dict[str, Any]] = {
        "body that does not fit": {"method": "POST", "body": "漢字", "_encoding": "latin-1"},
        "body with half a surrogate": {"method": "POST", "body": "\ud800"},
        "unknown encoding": {"_encoding": "no-such-encoding"},
        "encoding that is none": {"_encoding": "base64"},
        "encoding with NUL": {"_encoding": "utf-8\x00"},
    }
    for name, fields in seeds.items():
        yield name, json.dumps({"url": _url(port, name), **fields}).encode(), r"encod|body|surrogate|codec"
