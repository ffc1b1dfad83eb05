"""A result document: what it says of a page, and its JSON, the form that every sink sends.

orjson writes plain values in a tenth of the time. It differs from Python's json on others: NaN becomes null,
and it has words for classes that json refuses. So json writes those, and what orjson refuses: half a
surrogate pair, a number of more than 64 bits, a key that is no text.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from hashlib import sha1
from io import BytesIO
from json.encoder import encode_basestring as quoted
from math import isfinite
from operator import attrgetter
from pathlib import PurePath
from types import MappingProxyType, NoneType
from typing import Any, Final, NamedTuple
from uuid import UUID

import orjson
from itemadapter import ItemAdapter
from scrapy import Request
from scrapy.http import Headers, Response, TextResponse

from site_spider import meta_keys, options, runtime
from site_spider.contracts.sink import Record
from site_spider.errors import ConfigError, SinkRejected
from site_spider.ledger.completion import Job, job_of
from site_spider.ledger.ledger import SeedInFlight
from site_spider.options import SettingsView
from site_spider.page.decode import media_type
from site_spider.page.directives import as_stored, directives
from site_spider.page.links import Page
from site_spider.page.url import url_id
from site_spider.results.failures import describe_retries

# --- The result of one URL -------------------------------------------------------------------------------


@dataclass(slots=True)
class Result:
    """One result document; `url_id` is its `_id`.

    The first four fields after it are the contract with existing indices. Every field is written,
    also as null, so that nothing of an earlier result of the same `url_id` stays; but for `meta`, which
    holds fields of the producer's own, those of PAGE_FIELDS, which are null in crawls that read texts, and
    `additional_urls`, to which each process adds.
    """

    url_id: str
    status: int | None = None  # HTTP status; None when nothing answered
    headers: str | None = None  # response headers: a JSON object of name -> list of values
    body: str | None = None  # decoded text; None for binary content and when nothing answered
    description: str | None = None  # why the download failed; None on success
    url: str | None = None  # as asked for
    final_url: str | None = None  # as answered, after redirects
    host: str | None = None  # of `url`
    registered_domain: str | None = None  # of `host`, by the public suffix list
    method: str | None = None
    task_id: str | None = None
    depth: int | None = None  # hops from the seed
    parent_url_id: str | None = None  # of a discovered link: the page it was found on
    seed_url_id: str | None = None  # of a discovered link: the seed it descends from
    content_type: str | None = None
    encoding: str | None = None  # that `body` was decoded with
    body_base64: str | None = None  # binary content, with SITE_KEEP_BINARY
    body_truncated: bool = False  # True: the beginning, up to SITE_BODY_MAX_BYTES
    response_size: int | None = None  # bytes of the whole body, decompressed
    proxy: str | None = None  # that the answer came through, without credentials; None when directly
    latency_ms: float | None = None  # from sending the request to the end of the answer's head
    retries: int | None = None
    redirects: int | None = None
    reason: str | None = None  # kind of the failure, without host and counts: `HTTP 404`; None on success
    fetched_at: str | None = None  # ISO 8601, UTC
    spider: str | None = None
    etag: str | None = None  # as answered, weak ones with their W/
    last_modified: str | None = None  # likewise
    body_hash: str | None = None  # SHA-1 of the body, decompressed
    changed_at: str | None = None  # when it was first seen as it is; None when it was compared with nothing
    checked_at: str | None = None  # when it was last asked for and answered
    unchanged: bool | None = False  # True: it was asked for again and is what it was; None: the check failed
    robots_meta: str | None = None  # directives of meta robots and X-Robots-Tag
    gone_at: str | None = None  # since when it counts as gone, after some answers 404 or 410
    meta: dict[str, Any] = field(default_factory=dict)  # extra fields of the seed's meta
    # Written when one of them has a value, and of every page with SITE_TEXT (see PAGE_FIELDS).
    title: str | None = None
    text: str | None = None  # without mark-up
    language: str | None = None  # ISO 639
    canonical: str | None = None  # URL that the page names as its own
    meta_description: str | None = None
    published_at: str | None = None  # ISO 8601, UTC
    links_out: int | None = None  # distinct links, as written
    text_hash: str | None = None
    duplicate_of: str | None = None  # url_id of the first page of the host with this text
    additional_urls: list[str] | None = None  # pages that this one is the canonical of
    page_notes: str | None = None  # what could not be read, or is not as the page says
    # Of pages that are fetched if they have changed (see results/recrawl.py); without a value not written.
    next_at: str | None = None  # when the next check is due
    interval_s: int | None = None  # between checks that succeed
    failed_checks: int | None = None  # in a row
    gone_checks: int | None = None  # in a row

    def add_note(self, said: str | None) -> None:
        """To `page_notes`, which are no failure."""
        if said:
            self.page_notes = f"{self.page_notes}; {said}" if self.page_notes else said

    def document(self) -> dict[str, Any]:
        """The document as it is stored, without `url_id`'s own key being lost: it stays a field.

        Of a page that is unchanged, only what its check has found: the rest of the stored one stays. Of one
        whose check failed, or that failed although it is unchanged, the failure: its content stays.
        """
        if self.unchanged and self.description is None:
            said = {name: getattr(self, name) for name in _OF_UNCHANGED}
            return {name: value for name, value in said.items() if value is not None}
        found = dict(zip(_NAMES, _values(self), strict=True)) | self._checks()
        if not self.meta:
            del found["meta"]
        if self.unchanged is not False:
            left = _CONTENT if self.checked_at else _CONTENT | {"checked_at"}
            return {name: value for name, value in found.items() if name not in left} | {"unchanged": False}
        if self.additional_urls:
            found["additional_urls"] = self.additional_urls
        if (of_page := _page_values(self)) != _NO_VALUES:
            found.update(zip(PAGE_FIELDS, of_page, strict=True))
        return found

    def _checks(self) -> dict[str, Any]:
        is_good = 200 <= (self.status or 0) < 300  # also of a sitemap that breaks off: null takes it back
        gone = {"gone_at": self.gone_at} if is_good or self.gone_at else {}
        if self.next_at is None:
            return gone
        checks = ((name, getattr(self, name)) for name in CHECK_FIELDS)
        return {**gone, **{name: value for name, value in checks if value is not None}}


_CONTENT: Final = frozenset({
    "body", "body_base64", "body_truncated", "content_type", "encoding", "etag", "last_modified", "body_hash",
    "changed_at", "method", "robots_meta",
})  # fmt: skip
CHECK_FIELDS: Final = ("next_at", "interval_s", "failed_checks", "gone_checks")
OF_MERGED: Final = ("url_id", "url", "additional_urls")
_OF_UNCHANGED = (
    "url_id", "url", "etag", "last_modified", "checked_at", "unchanged", "next_at", "interval_s", "failed_checks",
    "gone_checks", "response_size",
)  # fmt: skip
PAGE_FIELDS: Final = (
    "title", "text", "language", "canonical", "meta_description", "published_at", "links_out", "text_hash",
    "duplicate_of", "page_notes",
)  # fmt: skip
_NO_VALUES = (None,) * len(PAGE_FIELDS)
_NOT_ALWAYS = {*PAGE_FIELDS, *CHECK_FIELDS, "gone_at", "additional_urls"}
_NAMES = tuple(field.name for field in fields(Result) if field.name not in _NOT_ALWAYS)
_values, _page_values = attrgetter(*_NAMES), attrgetter(*PAGE_FIELDS)


_any = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode

_ALIKE = frozenset((str, int, bool, NoneType))  # both write them alike
_BODIES = ("body", "body_base64")
_LONG = 65_536  # characters that are encoded in one call


def encode(document: Mapping[str, Any]) -> bytes:
    """Compact UTF-8 JSON in one line. Raises SinkRejected when JSON has no words for a value.

    Half a surrogate pair, which UTF-8 cannot carry, becomes a question mark; NaN and
    infinity are refused, because a single one makes a server refuse the whole batch.
    """
    for name in _BODIES:
        if isinstance(text := document.get(name), str) and len(text) > _LONG:
            return _in_slices(document)
    return _at_once(document)


def _in_slices(document: Mapping[str, Any]) -> bytes:
    """Field by field, and a body slice by slice: in one go it is in memory five times."""
    output = BytesIO(b"{")
    output.seek(1)
    for name, value in document.items():
        output.write(b"," if output.tell() > 1 else b"")
        if name in _BODIES and isinstance(value, str):
            output.write(b'"%b":"' % name.encode())
            for begin in range(0, len(value), _LONG):
                output.write(_at_once(value[begin : begin + _LONG])[1:-1])
            output.write(b'"')
        else:
            output.write(_at_once({name: value})[1:-1])
    output.write(b"}")
    return output.getvalue()


def _at_once(value: Any) -> bytes:
    try:
        if _is_plain(value):
            return orjson.dumps(value)
    except (TypeError, RecursionError):
        pass  # json may have words for it
    try:
        text = _any(dict(value) if isinstance(value, Mapping) else value)
    except (TypeError, ValueError, RecursionError) as error:
        raise SinkRejected(f"the document cannot be written as JSON: {error}") from None
    return text.encode("utf-8", "replace")


def _is_plain(value: Any) -> bool:
    """Whether orjson writes it as json does, or refuses it."""
    kind = type(value)
    if kind is dict:
        return _are_plain(value.values())
    if kind is list:
        return _are_plain(value)
    return isfinite(value) if kind is float else kind in _ALIKE


def _are_plain(values: Iterable[Any]) -> bool:
    return all(map(_is_plain, [value for value in values if type(value) not in _ALIKE]))


def shortened(document: Mapping[str, Any], halvings: int) -> Mapping[str, Any] | None:
    """The document with its body halved so often, and flagged; None when nothing is left to halve."""
    if halvings == 0:
        return document
    field = "body_base64" if document.get("body") is None else "body"
    body = document.get(field)
    if not isinstance(body, str) or not len(body) >> (halvings - 1):
        return None
    length = len(body) >> halvings
    if field == "body_base64":
        length -= length % 4  # what can be decoded
    return {**document, field: body[:length], "body_truncated": True}


# --- Null is written only where the crawler owns the field, never over a producer's value ----------------
# A stored document has a field MARK: the names of those that our last result had no value for, with commas
# between them. What has a value all the same is the producer's; what has one and is not among them was
# written by us. The fields of the contract are always written.

MARK: Final = "absent"
ALWAYS: Final = frozenset({"url_id", "status", "headers", "body", "description"})
_OF_EACH: Final = ALWAYS - {"body"}  # also of a check that failed
_OF_EARLIER_VERSIONS: Final = ("latency_ms", "redirects")  # which wrote every field, and no mark
OF_MARK: Final = (MARK, *_OF_EARLIER_VERSIONS)  # the fields of a stored document that `in_doubt` looks at


def is_marked(document: Mapping[str, Any]) -> bool:
    """Whether a document gets a mark: it is a result, and has fields beyond those of the contract."""
    return document.keys() >= _OF_EACH and not document.keys() <= ALWAYS


def marked(stored: Mapping[str, Any], names: Iterable[str], document: Collection[str], every: Iterable[str]) -> str:
    """The new mark: the names without a value, and those of the stored one that are not written this time."""
    mark = stored.get(MARK)
    before = mark.split(",") if isinstance(mark, str) else () if "body" in document or _is_earlier(stored) else every
    return ",".join([*names, *(name for name in before if name and name not in document and name not in ALWAYS)])


def absent(document: Mapping[str, Any]) -> list[str]:
    """The names of the fields without a value that may be a producer's."""
    return [name for name, value in document.items() if value is None and name not in ALWAYS]


def looked_at(documents: Iterable[Mapping[str, Any]]) -> list[str]:
    """The fields that `settled` needs of what is stored; none under documents that are whole and have no nulls."""
    results = [document for document in documents if is_marked(document)]
    names = {name for document in results for name in absent(document)}
    is_wanted = names or not all("body" in document for document in results)
    return [*sorted(names), *OF_MARK] if is_wanted else []


def in_doubt(stored: Mapping[str, Any], names: Collection[str]) -> set[str]:
    """Those of the names whose value in the stored document, if there is one, is a producer's."""
    mark = stored.get(MARK)
    if isinstance(mark, str):
        return set(mark.split(",")) & set(names)
    return set() if _is_earlier(stored) else set(names)


def _is_earlier(stored: Mapping[str, Any]) -> bool:
    return all(name in stored for name in _OF_EARLIER_VERSIONS)


def settled(stored: Mapping[str, Any], document: Mapping[str, Any], every: Collection[str] = ()) -> Mapping[str, Any]:
    """What is written over a stored document: without nulls for what is a producer's, and with the mark.

    `every` field that a result may have; none: those of Result.
    """
    if not is_marked(document):
        return document
    names = absent(document)
    theirs = {name for name in in_doubt(stored, names) if stored.get(name) is not None} if stored else ()
    over = {name: value for name, value in document.items() if name not in theirs} if theirs else document
    return {**over, MARK: marked(stored, names, document, every or _CHOICE)}


def without_mark(document: Mapping[str, Any]) -> dict[str, Any]:
    """A stored document as readers see it."""
    return {name: value for name, value in document.items() if name != MARK}


# --- Which fields of a result are written, and under which names: SITE_RESULT_FIELDS ---------------------

SETTING: Final = "SITE_RESULT_FIELDS"
Fields = Mapping[str, str]  # to their names in a document; empty: all as they are
_CHOICE: Final = tuple(field.name for field in fields(Result) if field.name not in ALWAYS)

_NAME: Final = re.compile(r"[^\W_][\w.-]*")
_OURS: Final = frozenset(_CHOICE)


def result_fields(settings: SettingsView) -> Fields:
    """The setting: a list of names, or a mapping to other names. Raises ConfigError."""
    value = settings.get(SETTING)
    is_mapping = isinstance(value, Mapping) or (isinstance(value, str) and value.lstrip().startswith("{"))
    chosen = options.mapping(settings, SETTING) if is_mapping else {name: name for name in _names(settings)}
    if not chosen:
        return {}
    for name in sorted(chosen.keys() - ALWAYS - set(_CHOICE)):
        raise ConfigError(f"{SETTING} names {name!r}, but a result has: {', '.join(_CHOICE)}.")
    for name, target in chosen.items():
        _check(name, target)
    written = {**{name: name for name in ALWAYS}, **chosen}
    if len(set(written.values())) < len(written):
        raise ConfigError(f"{SETTING} gives two fields one name; give each a name of its own.")
    return written


def _names(settings: SettingsView) -> list[str]:
    value = settings.get(SETTING)
    is_json = isinstance(value, str) and value.lstrip().startswith("[")
    return options.texts(settings, SETTING) if is_json else options.names(settings, SETTING)


def _check(name: str, target: object) -> None:
    said = f"{SETTING} maps {name} to {target!r}, but"
    if not isinstance(target, str) or target == MARK or not _NAME.fullmatch(target):
        raise ConfigError(f"{said} a name has letters, digits, _, - and dots, begins without _, is not {MARK}.")
    if name in ALWAYS and target != name:
        raise ConfigError(f"{said} the name of this field is fixed; leave it out.")


def written(document: Mapping[str, Any], names: Fields) -> dict[str, Any]:
    """The fields of a document that are written, under their names; what no result has stays as it is."""
    if not names:
        return dict(document)
    dropped = _OURS.difference(names)
    return {names.get(name, name): value for name, value in document.items() if name not in dropped}


# --- What is known of a page besides its response: the seed it belongs to, and where it stands in its tree

_NOTHING: Mapping[str, Any] = MappingProxyType({})
_MOST_COMPARED = 50_000  # bytes of a page without a document


class SeedPage(NamedTuple):
    """A page of a crawl; `meta` holds the fields of the seed's meta that are data."""

    url: str  # as asked for
    url_id: str  # the `_id` of its result
    task_id: str | None = None
    depth: int = 0  # hops from the seed
    parent_url_id: str | None = None  # the page it was found on
    seed_url_id: str | None = None  # the seed that it descends from; None for a seed's own page
    meta: Mapping[str, Any] = _NOTHING

    @property
    def parent(self) -> str | None:
        return self.parent_url_id


def page_of(response: Response | Request) -> SeedPage:
    """What is known of a response, or of a request. One that descends from no seed has its URL alone."""
    request = response if isinstance(response, Request) else response.request
    job = None if request is None else job_of(request)
    if job is not None:
        return page_of_job(job)
    url = response.url if request is None else request.url
    depth = 0 if request is None else request.meta.get("depth", 0)
    return SeedPage(url, url_id(url), depth=depth)


def page_of_job(job: Job) -> SeedPage:
    """The page whose document a job writes."""
    seed, parent = job.seed, job.parent
    return SeedPage(
        url=job.url,
        url_id=job.url_id,
        task_id=seed.task_id,
        depth=job.depth,
        parent_url_id=seed.parent_url_id if parent is None else parent.url_id,
        seed_url_id=seed.seed_url_id if parent is None else seed.seed_url_id or seed.url_id,
        meta=seed.extra,
    )


def unstored(job: Job) -> Mapping[str, Any]:
    """What is counted of a page that was answered, and that nobody wants a document of; a small one may be a trap."""
    answer = job.answer
    if isinstance(answer, Result):
        return looked_through(job, answer.document())
    body, is_text = answer.body, isinstance(answer, TextResponse)
    said = {"url_id": job.url_id, "status": answer.status, "method": job.method, "response_size": len(body)}
    if len(body) > _MOST_COMPARED:
        return said
    body_hash = sha1(body, usedforsecurity=False).hexdigest()
    return {**said, "body": answer.text if is_text else None, "body_hash": body_hash}


def looked_through(job: Job, document: Mapping[str, Any]) -> Mapping[str, Any]:
    """What is counted of a page: all that it says, kept or not; of one that is unchanged, if its links are followed."""
    page = job.page
    is_short = document.get("unchanged") and isinstance(page, Result) and page.status is not None
    whole = {**replace(page, unchanged=False).document(), **document} if is_short else document  # which may have failed
    return {**whole, **job.dropped} if job.dropped else whole


# --- What a result says of the answer, and of the attempts before it -------------------------------------

_TYPE_BYTES = 1_024  # of a Content-Type; no type is longer


def describe_response(result: Result, response: Response, page: Page) -> None:
    """Fill in what the answer says."""
    body = response.body
    result.status = response.status
    result.headers = headers_json(response.headers)
    result.body = page.kept.text
    result.body_base64 = page.kept.base64
    result.body_truncated = page.kept.truncated
    result.description = describe_status(response.status)
    if result.description and (reason := response.meta.get(meta_keys.NOT_FOLLOWED)):
        result.description += f", not followed: {reason}"
    if result.description:
        result.description += describe_retries(response.meta)
    result.final_url = response.url
    result.content_type = media_type(content_type_of(response)) or None
    result.encoding = page.encoding if body else None
    result.response_size = len(body)
    result.body_hash = page.body_hash
    if page.robots or dict.get(response.headers, b"X-Robots-Tag"):
        result.robots_meta = as_stored(directives([*header_texts(response, b"X-Robots-Tag"), *page.robots]))
    latency_seconds = response.meta.get("download_latency")
    result.latency_ms = None if latency_seconds is None else round(latency_seconds * 1000, 1)


def describe_request(result: Result, request: Request, spider: str) -> None:
    """Fill in what is known of the last attempt, whatever came of it."""
    meta = request.meta
    result.retries = meta.get("retry_times", 0)
    result.redirects = meta.get("redirect_times", 0)
    result.final_url = request.url
    result.spider = spider
    result.fetched_at = runtime.now(UTC).isoformat(timespec="milliseconds")


def headers_json(headers: Headers) -> str:
    """A JSON object of name -> list of values, in the order of the answer, repeated ones intact."""
    lines = [
        f"{quoted(name.decode('latin-1'))}: [{', '.join([quoted(v.decode('latin-1')) for v in values])}]"
        for name, values in dict.items(headers)
    ]
    return f"{{{', '.join(lines)}}}"


def content_type_of(response: Response) -> str | None:
    """The header Content-Type, if there is one."""
    values = dict.get(response.headers, b"Content-Type")  # past Scrapy's slow look-up
    return values[-1][:_TYPE_BYTES].decode("latin-1") if values else None


def header_texts(response: Response, name: bytes) -> list[str]:
    """The values of one header; `name` as Scrapy spells it."""
    return [value.decode("latin-1") for value in dict.get(response.headers, name, ())]


def describe_status(status: int) -> str | None:
    """None for a success (2xx), else such as `HTTP 404 Not Found`."""
    return None if 200 <= status < 300 else f"HTTP {status} {http.client.responses.get(status, '')}".rstrip()


# --- json values: what spiders put into items as values that JSON has words for --------------------------
# Text, numbers, true, false, null, lists and objects stay as they are. Dates and times become ISO 8601,
# Decimal and UUID text, sets sorted lists; dataclasses, attrs, pydantic and Scrapy items become objects.
# Anything else is refused with the name of its field, and so is what is nested without end.

MAX_BYTES: Final = 16_000_000  # of one item, about: what a Kafka client takes as one message

_WORDS: Final[dict[type, Callable[[Any], Any]]] = {
    datetime: datetime.isoformat,
    date: date.isoformat,
    time: time.isoformat,
    Decimal: str,
    UUID: str,
    PurePath: str,
    Job: attrgetter("url_id"),  # as in the meta of a page
    SeedInFlight: attrgetter("position"),
}


def _json_value(value: Any) -> Any:
    """Of a class that json does not know."""
    if isinstance(value, Enum):
        return value.value
    for kind, word in _WORDS.items():
        if isinstance(value, kind):
            return word(value)
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, Mapping):
        return dict(value)
    if ItemAdapter.is_item(value):
        return dict(ItemAdapter(value))
    raise TypeError(f"JSON has no words for the class {type(value).__qualname__}; make it text or a number")


_item_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_json_value).encode


def item_fields(item: Mapping[str, Any] | ItemAdapter) -> tuple[dict[str, Any], int]:
    """The fields of an item as plain values, and about what they weigh. Raises SinkRejected."""
    fields = dict(item)
    try:
        text = _item_json(fields)
        made: dict[str, Any] = json.loads(text)
    except (TypeError, ValueError, RecursionError) as error:
        raise SinkRejected(f"{_culprit(fields)} of the item cannot be stored: {error}") from None
    if len(text) > MAX_BYTES:
        raise SinkRejected(f"the item has more than {MAX_BYTES} bytes")
    return made, len(text)


def _culprit(fields: Mapping[Any, Any]) -> str:
    """The field that JSON has no words for."""
    for name, value in fields.items():
        try:
            _item_json({name: value})
        except (TypeError, ValueError, RecursionError):
            return f"field {str(name)[:100]!r}"
    return "a field"


# --- Items of spiders on their way to the sinks: each is a document of its own ---------------------------
# It is stored under its `item_id`, or else under its page's url_id and its place there, so doing a seed
# again leaves the same documents. What cannot be stored makes the seed a dead letter that names the page.

PAGE = "_page"
_OVERHEAD_BYTES = 600  # of a record besides its document's text
_SHOWN_CHARACTERS = 300  # of a URL


def item_record(item: Any, page: SeedPage, place: int, spider: str) -> Record:
    """The record of an item that stands at this place of a page. Raises SinkRejected."""
    document, size_bytes = item_fields(item if isinstance(item, Mapping) else ItemAdapter(item))
    if PAGE in document:
        raise SinkRejected(f"the item has a field {PAGE!r} of its own; it stands for the page: rename yours")
    key = identity_of(document.get("item_id")) or f"{page.url_id}-{place}"
    document[PAGE] = {
        "url_id": page.url_id,
        "url": page.url,
        "task_id": page.task_id,
        "seed_url_id": page.seed_url_id,
        "depth": page.depth,
        "fetched_at": runtime.now(UTC).isoformat(timespec="milliseconds"),
        "spider": spider,
    }
    return Record(key, document, size_bytes + _OVERHEAD_BYTES + len(page.url), "item")


def refusal_of(record: Record, reason: str) -> str:
    """Why a record cannot be stored; for an item with its page."""
    if record.kind == "result":
        return reason
    return of_page(record.document[PAGE]["url"], f"item {record.key[:_SHOWN_CHARACTERS]}: {reason}")


def of_page(url: str, reason: str) -> str:
    """A reason with the page it is about."""
    return f"{reason} (page {url[:_SHOWN_CHARACTERS]})"


def identity_of(value: Any) -> str:
    """An `item_id` as text, the key of its document; empty for one that says nothing. Raises SinkRejected."""
    if value is None or value == "":
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int):
        raise SinkRejected(f"item_id is {str(value)[:80]!r}, but must be text or a whole number")
    return str(value)
