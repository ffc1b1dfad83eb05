"""Messages that are not valid seeds: each must become a dead letter, and none may be fetched.

One of each kind of mistake; tests/seed has all that the parser refuses.
"""

from __future__ import annotations

import json
import re
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


_FIELDS: dict[str, Any] = {  # beside a good URL; the name of the field is the word
    "meta": ["NotExtract"],
    "method": "GET / HTTP/1.1\r\nX-Injected: yes\r\n",
    "headers": {"X-A": "1\r\nX-Injected: yes"},
    "cookies": "a=1",
    "body": {"a": 1},
    "priority": "high",
    "dont_filter": "perhaps",
    "callback": "os.system",
    "errback": "parse",
    "cb_kwargs": [{"response": 1}],
    "flags": ["cached"],
    "_encoding": "base64",
    "_class": "subprocess.Popen",
}
_META: dict[str, Any] = {
    "url_id": "x" * 600,
    "depth": -1,
    "NotExtract": "perhaps",
    "proxy": "http://127.0.0.1:9/",
    "cookiejar": 1,
}
_URLS: dict[str, Any] = {
    "null": None,
    "a list": ["http://{}/never/list"],
    "empty": "",
    "without host": "http:///never/host",
    "relative": "/never/relative",
    "with a space in the host": "http://127.0.1.1 /never/space",
    "with a line break": "http://{}/never/a\r\nX-Injected: yes",
    "with half a surrogate": "http://{}/never/\ud800",
    "over 8 KiB": f"http://{{}}/never/{'a' * 8200}",
    "with a port out of range": "http://127.0.1.1:99999/never/port",
    "of a file": "file:///etc/passwd",
    "of a script": "javascript:never()",
}


def bad_messages(port: int) -> list[BadMessage]:
    """The URLs lie under /never/, so that a fetch shows in the site's record."""
    place = f"127.0.1.1:{port}"

    def seed(name: str, **fields: Any) -> bytes:
        path = re.sub(r"[^a-z0-9]+", "-", name.lower())
        return json.dumps({"url": f"http://{place}/never/{path}", **fields}).encode()

    found: list[tuple[str, bytes | None, str]] = [
        ("null value", None, r"null|empty|no value"),
        ("empty message", b"", r"empty|JSON"),
        ("no JSON", b"http://127.0.1.1/never/plain", r"JSON"),
        ("two documents", seed("two") + b"{}", r"JSON|extra"),
        ("invalid UTF-8", b'{"url": "http://127.0.1.1/never/\xff\xfe"}', r"UTF-?8|decode"),
        ("top level list", b'["http://127.0.1.1/never/list"]', r"object|list"),
        ("duplicate keys", seed("dup")[:-1] + b', "url": "http://127.0.1.1/"}', r"duplicate|twice"),
        ("very long number", seed("digits")[:-1] + b', "priority": %b}' % (b"9" * 5000), r"digit|number|large"),
        ("deep lists", b"[" * 100_000, r"nest|deep|JSON|large"),
        ("1 MB, nearly all of it URL", seed("big", url=f"http://{place}/never/{'x' * 990_000}"), r"large|url"),
        ("no URL", b'{"meta": {"url_id": "bad-no-url"}}', r"url"),
        ("body that does not fit", seed("fit", method="POST", body="漢字", _encoding="latin-1"), r"body|encod"),
    ]
    for name, url in _URLS.items():
        given = url.format(place) if isinstance(url, str) else url
        found.append((f"URL {name}", json.dumps({"url": given}).encode(), r"url|scheme"))
    found += [(f"wrong {name}", seed(name, **{name: value}), name) for name, value in _FIELDS.items()]
    found += [(f"meta {name}", seed(name, meta={name: value}), name) for name, value in _META.items()]
    found += [
        (f"header {name}", seed(name, headers={name: "example.test"}), name) for name in ("Host", "Proxy-Authorization")
    ]
    return [BadMessage(name, None if n % 9 == 8 else KEY, *more) for n, (name, *more) in enumerate(found)]
