"""A page of a task as it is counted: a record of the page log, and how it is read.

A page is known by its URL within its task, not by the message that asked for it. So a page that was fetched
for two messages, or once more after a death, is one page.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from typing import Any, NamedTuple

from site_spider.errors import SiteSpiderError
from site_spider.ledger.completion import Job, id_of_page

_SEPARATOR = "\x1f"
_BITS = 64  # of the number of a page: two of ten million are equal by a chance of 1 in 400,000
_MOST_BYTES = 2**40
_MOST_REASON_CHARACTERS = 80
_MOST_REASON_BYTES = 4 * _MOST_REASON_CHARACTERS
_WITHOUT_BODY = ("GET", "HEAD")  # their URL says which page it is


class BadPages(SiteSpiderError):
    """A record of the page log that this version did not write."""


class CountedPage(NamedTuple):
    """`page` is a number of 64 bits with a sign; `reason` says why there is a failure, if there is one."""

    page: int
    size_bytes: int
    is_answered: bool
    reason: str | None


class PageFact(NamedTuple):
    """What is kept of a document until its seed is counted; `url` is None where `url_id` names the page."""

    url: str | None
    scope: str | None
    url_id: str
    size_bytes: int
    is_answered: bool
    description: str | None

    @classmethod
    def of(cls, job: Job, document: Mapping[str, Any]) -> PageFact:
        """From the document of a job."""
        url_id, description = str(document["url_id"]), document.get("description")
        is_its_page = url_id == job.url_id and job.method in _WITHOUT_BODY
        return cls(
            job.url if is_its_page else None,
            job.page_scope,
            url_id,
            document.get("response_size") or 0,
            document.get("status") is not None,
            None if description is None else str(description),
        )

    def counted(self) -> CountedPage:
        """For the page log."""
        named = self.url_id if self.url is None else id_of_page(self.url, self.scope)
        reason = None if self.description is None else _reason(self.description)
        return CountedPage(_number(named), self.size_bytes, self.is_answered, reason)


def key_of(task_id: str, writer: str, number: int) -> bytes:
    """Of one record; no two have the same."""
    return _SEPARATOR.join((task_id, writer, str(number))).encode()


def task_of(key: bytes | None) -> str:
    """Whose pages a record has. Raises BadPages."""
    try:
        task_id, _, number = (key or b"").decode().split(_SEPARATOR)
        int(number)
    except ValueError:
        raise BadPages("its key is not that of a record of pages") from None
    return task_id


def written(pages: Iterable[CountedPage]) -> bytes:
    """The value of a record; `read` is the inverse."""
    return json.dumps(list(pages), ensure_ascii=False, separators=(",", ":")).encode()


def read(value: bytes) -> list[CountedPage]:
    """Raises BadPages."""
    try:
        return [_checked(*page) for page in json.loads(value)]
    except (ValueError, TypeError, RecursionError) as error:
        raise BadPages(f"its value is no list of pages: {error!r:.200}") from None


def _checked(page: object, size_bytes: object, is_answered: object, reason: object) -> CountedPage:
    if not (type(page) is int and -(1 << _BITS - 1) <= page < 1 << _BITS - 1):
        raise ValueError(f"{page!r:.40} is no page")
    if not (type(size_bytes) is int and 0 <= size_bytes <= _MOST_BYTES):
        raise ValueError(f"{size_bytes!r:.40} is no size")
    if not (isinstance(is_answered, bool) and (reason is None or isinstance(reason, str))):
        raise TypeError(f"{is_answered!r:.40}, {reason!r:.40} are no outcome")
    if len((reason or "").encode()) > _MOST_REASON_BYTES:  # raises ValueError for half a character
        raise ValueError(f"{reason!r:.40} is too long")
    return CountedPage(page, size_bytes, is_answered, reason)


def _number(named: str) -> int:
    return int.from_bytes(
        blake2b(named.encode("utf-8", "replace"), digest_size=8).digest(), "big", signed=True
    )


def _reason(description: str) -> str:
    name = description.partition(":")[0].partition(" (after ")[0].strip()[:_MOST_REASON_CHARACTERS]
    return name.encode("utf-8", "replace").decode()
