"""Parses a seed and checks every field.

Nothing from a message takes effect unless this module names it: fields that are known,
meta keys that are directives. All other meta keys are data, which comes out in the
result document and never becomes a key of Scrapy's `Request.meta`.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import islice
from sys import getsizeof
from typing import Any, Final

from site_spider.contracts.seed_log import Headers, Message
from site_spider.errors import SeedError
from site_spider.page.url import check_url, host_of, url_id
from site_spider.seed import fields as check
from site_spider.seed import spilled
from site_spider.seed.fields import read_object
from site_spider.seed.spilled import Spilled
from site_spider.text import refused, shown

MAX_RETRY_TIMES: Final = 100
MAX_TIMEOUT_SECONDS: Final = 3600

CALLBACKS: Final[frozenset[str]] = frozenset({"parse"})
CALLBACK_NAME: Final = re.compile(r"[^\W\d]\w*")  # of a method

_MOST_UNKNOWN: Final = 20  # fields that are counted by name, of one seed
_MOST_SHOWN: Final = 5  # of them, where there is no URL
_LONGEST_UNKNOWN: Final = 80  # characters of such a name

_FIELDS: Final = frozenset({
    "url", "meta", "method", "_encoding", "headers", "cookies", "body", "priority", "dont_filter", "callback",
})  # fmt: skip
_KNOWN: Final = frozenset({*_FIELDS, *check.BESIDE_THE_URL, spilled.HOPS, spilled.PLACE, spilled.HOME})
_META: Final = frozenset({
    "url_id", "NotExtract", "task_id", "depth", "parent_url_id", "seed_url_id", spilled.KEY,
    spilled.SIGNATURE_KEY,
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class Seed:
    """A message that passed all checks.

    `body` is encoded with `encoding`, None when absent. `callback` is the name of an
    entry of the allow-list, None for the default. `directives` are the keys for
    `Request.meta`; `extra_json` is the rest of meta, for the result document: JSON in UTF-8, which
    takes a tenth of the memory of the objects, and nothing when empty.
    `page_scope` is within what its pages are compared with others and have their default ids: its task,
    or None for all that the consumer group does.
    `parent_url_id`, `seed_url_id` and `spilled` come with what another process sent on.
    """

    url: str
    url_id: str
    method: str
    encoding: str
    headers: tuple[tuple[str, str], ...]
    cookies: check.Cookies
    body: bytes | None
    priority: int
    dont_filter: bool
    callback: str | None
    not_extract: bool
    task_id: str | None
    depth: int
    parent_url_id: str | None
    seed_url_id: str | None
    directives: dict[str, Any]
    extra_json: bytes
    unknown_fields: tuple[str, ...]
    spilled: Spilled | None = None
    page_scope: str | None = field(default=None, compare=False)
    task_source: str | None = field(default=None, compare=False)  # of its task, when it names none itself

    @property
    def is_link(self) -> bool:
        """Whether no producer asked for its page: another process found it."""
        moved = self.spilled
        return moved is not None and (moved.is_link or self.parent_url_id is not None)

    @property
    def extra(self) -> dict[str, Any]:
        """The keys of meta that are data, made anew each time."""
        return json.loads(self.extra_json) if self.extra_json else {}


def parse_seed(
    value: bytes | None,
    callbacks: frozenset[str] | None = CALLBACKS,
    keys: Sequence[bytes] = (),
    *,
    by_task: bool = True,
    needs_url: bool = True,
) -> Seed:
    """The seed in a message's value. Raises SeedError, and nothing else, when it is not one.

    `callbacks` are the names that the field `callback` may take; None: any name. With `keys`, what another process
    sent on has to be signed with one of them. `by_task`: SITE_DUPEFILTER_SCOPE is task. Where a spider makes
    requests of seeds itself, `needs_url` is False: one that has `meta` instead gets an empty URL.
    """
    fields = read_object(value)
    get = fields.get
    url = _url(fields, needs_url=needs_url)
    meta = check.mapping("meta", get("meta"))
    unknown: tuple[str, ...] = ()
    if not fields.keys() <= _FIELDS:
        unknown, meta = _unknown_fields(fields), check.gathered_fields(fields, meta)
    directives, extra = _split_meta(meta)
    encoding = check.encoding(fields["_encoding"]) if "_encoding" in fields else "utf-8"
    task_id = check.optional_identifier("meta.task_id", meta["task_id"]) if "task_id" in meta else None
    page_scope = task_id if by_task else None
    parent_url_id = seed_url_id = None
    if "parent_url_id" in meta or "seed_url_id" in meta:
        parent_url_id = check.optional_identifier("meta.parent_url_id", meta.get("parent_url_id"))
        seed_url_id = check.optional_identifier("meta.seed_url_id", meta.get("seed_url_id"))
    return Seed(
        url=url,
        url_id=(check.identifier("meta.url_id", meta["url_id"]) if "url_id" in meta else None)
        or (_default_id(url, page_scope) if url else _id_of_data(meta)),
        method=check.method(fields["method"]) if "method" in fields else "GET",
        encoding=encoding,
        headers=check.headers(fields["headers"], encoding) if "headers" in fields else (),
        cookies=check.cookies(fields["cookies"]) if "cookies" in fields else {},
        body=check.body(fields["body"], encoding) if "body" in fields else None,
        priority=check.priority("priority", fields["priority"]) if "priority" in fields else 0,
        dont_filter=check.boolean("dont_filter", get("dont_filter")),
        callback=_callback(fields["callback"], callbacks) if "callback" in fields else None,
        not_extract=check.flag("meta.NotExtract", meta.get("NotExtract")),
        task_id=task_id,
        depth=check.depth("meta.depth", meta["depth"]) if "depth" in meta else 0,
        parent_url_id=parent_url_id,
        seed_url_id=seed_url_id,
        directives=directives,
        extra_json=json.dumps(extra, ensure_ascii=False, separators=(",", ":")).encode() if extra else b"",
        unknown_fields=unknown,
        spilled=None if (said := meta.get(spilled.KEY)) is None else spilled.origin_of(url, fields, said, keys),
        page_scope=page_scope,
    )


def _url(fields: dict[str, Any], *, needs_url: bool) -> str:
    if "url" in fields:
        return check_url(fields["url"])
    if needs_url or not isinstance(fields.get("meta"), dict) or not fields["meta"]:
        raise refused("url", _missing(fields) if needs_url else "missing, and there is no meta instead")
    return ""


def _missing(fields: dict[str, Any]) -> str:
    """Says what is there, as the envelope of a connector or another spelling."""
    names = ", ".join(map(shown, islice(fields, _MOST_SHOWN)))
    return f"missing; it must stand in the outermost object, which has {names or 'no field'}"


def _id_of_data(meta: dict[str, Any]) -> str:
    """Of a seed without a URL: the same for the same meta."""
    text = json.dumps(meta, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return hashlib.blake2b(text.encode(), digest_size=20).hexdigest()


def _default_id(url: str, page_scope: str | None) -> str:
    try:
        return url_id(url, page_scope)
    except ValueError:
        raise refused("url", f"{shown(url)} cannot be brought into canonical form") from None


def _unknown_fields(fields: dict[str, Any]) -> tuple[str, ...]:
    """Names of the fields that are ignored. Raises SeedError for those that must not be."""
    unknown: list[str] = []
    for name, value in fields.items():
        if name in _KNOWN:
            continue
        ours = name in check.MUST_BE_EMPTY or name.startswith("_")  # refused, not ignored, when it says something
        if ours and not _is_empty(value):
            raise refused(name, f"{shown(value)} is not allowed in a seed; leave it out")
        if not ours and len(unknown) < _MOST_UNKNOWN:
            unknown.append(name[:_LONGEST_UNKNOWN])
    return tuple(unknown)


def _is_empty(value: object) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)


def _callback(value: object, callbacks: frozenset[str] | None) -> str | None:
    if _is_empty(value):
        return None
    if isinstance(value, str) and (CALLBACK_NAME.fullmatch(value) if callbacks is None else value in callbacks):
        return value
    names = "those in seed_callbacks of the spider" if callbacks is None else ", ".join(sorted(callbacks)) or "none"
    raise refused("callback", f"{shown(value)} is not allowed; known: {names}")


def _split_meta(meta: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """What has an effect, and what is data. Raises SeedError for keys that are not allowed."""
    directives, extra = {}, {}
    for key, value in meta.items():
        if key in _META:
            continue
        if key in _DIRECTIVES:
            if value is not None:
                directives[key] = _DIRECTIVES[key](f"meta.{key}", value)
        elif check.is_forbidden(key):
            raise refused("meta", f"key {shown(key)} is not allowed in a seed; leave it out")
        else:
            extra[key] = value
    return directives, extra


_DIRECTIVES: Final[dict[str, Callable[[str, object], bool | float | str]]] = {
    "dont_redirect": check.boolean,
    "dont_retry": check.boolean,
    "dont_merge_cookies": check.boolean,
    "max_retry_times": lambda field, value: check.integer(field, value, 0, MAX_RETRY_TIMES),
    "download_timeout": lambda field, value: check.seconds(field, value, MAX_TIMEOUT_SECONDS),
    **check.CONDITIONS,
}
DIRECTIVES: Final = frozenset(_DIRECTIVES)


# --- line: A line of a seed file, a URL or a JSON seed, as a message -------------------------------------

_BLANKS = " \t\r\n\ufeff"  # a byte order mark may open a file


def seed_message(
    line: str,
    *,
    task_id: str | None = None,
    method: str | None = None,
    not_extract: bool = False,
    moved: Callable[[list[str]], None] = lambda _names: None,
    needs_url: bool = True,
    callbacks: frozenset[str] | None = CALLBACKS,
) -> tuple[bytes, bytes]:
    """Key (the host, or the id of a seed without a URL) and value (JSON) of the message for a line, checked
    as the crawler will.

    The options fill in where the line says nothing. Fields of meta that stand beside the URL go into meta;
    `moved` hears the names of those that usually stand in meta. Raises SeedError.
    """
    text = line.strip(_BLANKS)
    if not text:
        raise refused("line", "empty")
    if text[0] in '["]}':
        raise refused("line", "a part of JSON; a seed in JSON is one object in one line")
    document: dict[str, Any] = read_object(_utf8(text)) if text.startswith("{") else {"url": text}
    if method is not None and document.get("method") is None:
        document["method"] = method
    meta = document.get("meta")
    names = [name for name in document if name in check.BESIDE_THE_URL]
    if meta is None or isinstance(meta, dict):  # anything else is for parse_seed to refuse
        gathered = check.gathered_fields(document, meta or {})
        document = {name: value for name, value in document.items() if name not in names}
        document.update(_with_options(gathered, task_id, not_extract))
    value = _utf8(json.dumps(document, ensure_ascii=False, separators=(",", ":")))
    seed = parse_seed(value, callbacks, needs_url=needs_url)
    if said := [name for name in names if name not in check.CONDITIONS]:  # these usually stand beside the URL
        moved(said)
    return (host_of(seed.url) or seed.url_id).encode(), value


def _with_options(meta: dict[str, Any], task_id: str | None, not_extract: bool) -> dict[str, Any]:
    """The field `meta` with what the options add; nothing when it is empty even so."""
    filled = dict(meta)
    if task_id is not None and filled.get("task_id") is None:
        filled["task_id"] = task_id
    if not_extract and filled.get("NotExtract") is None:
        filled["NotExtract"] = True
    return {"meta": filled} if filled else {}


def _utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise refused("line", "not UTF-8") from None


# --- moved -----------------------------------------------------------------------------------------------
# What the headers say of a seed that goes on as another message: put back after a pause, or sent elsewhere.

MOVED: Final = "moved"
FIRST_PLACE: Final = "first_place"  # where the message of its producer is
FIRST_WRITTEN: Final = "first_written_ms"  # when a message of the seed was written first
_DIGITS = re.compile(rb"[0-9]{1,16}")


def moved_headers(seed: Seed, message: Message, *, is_link: bool = False) -> Headers:
    """Of the message as which a seed, or a link of its tree, goes on."""
    first = (MOVED, b""), (FIRST_WRITTEN, b"%d" % first_written_ms(message))
    if is_link:
        return first[1:]
    headers = dict(message.headers)
    if (seed.task_id or seed.parent_url_id) and seed.spilled is None and not headers.keys() & {FIRST_PLACE, MOVED}:
        place = f"{message.partition.topic}/{message.partition.number}/{message.offset}"
        return *first, (FIRST_PLACE, place.encode())
    return *first, *first_place(message.headers)


def is_of_link(seed: Seed, headers: Headers) -> bool:
    """As `Seed.is_link`, but for a check of a link's page that has moved: `scrapy recrawl` has asked for that."""
    return seed.is_link and not first_place(headers)


def carried(headers: Headers) -> Headers:
    """What is true of a seed however often it moves."""
    return tuple(one for one in headers if one[0] in (FIRST_PLACE, FIRST_WRITTEN))


def first_place(headers: Headers) -> Headers:
    """Of these headers the one that says it; releases before did not."""
    return tuple((name, value) for name, value in headers if name == FIRST_PLACE)


def first_written_ms(message: Message) -> int:
    """Before it, nothing was done of this seed."""
    said = dict(message.headers).get(FIRST_WRITTEN, b"") if message.headers else b""
    return int(said) if _DIGITS.fullmatch(said) else message.timestamp_ms


# --- weight: estimates the memory of a seed; tests/frontier/test_weight.py measures it -------------------
# Besides the texts, the numbers are resident memory; tests/frontier/test_weight.py holds them.

TEXT_BYTES = 60  # a string or bytes besides what is in them, with their place in a list
_SEED_BYTES = 1_400  # in flight: with its entry in the ledger and its place in the frontier
_PAIR_BYTES = 200  # name and value of a seed's header or cookie


def seed_bytes(message: Message, seed: Seed | SeedError) -> int:
    """The weight of a seed in flight: its message, and what was made of it."""
    size = _SEED_BYTES + len(message.value or b"") + len(message.key or b"")
    if message.headers:
        size += sum(_PAIR_BYTES + len(name) + len(value) for name, value in message.headers)
    if isinstance(seed, SeedError):
        return size
    size += len(seed.url) + len(seed.extra_json) + len(seed.body or b"")
    if seed.headers:
        size += sum(_PAIR_BYTES + len(name) + len(value) for name, value in seed.headers)
    if seed.cookies:
        size += object_bytes(seed.cookies)
    if (said := seed.spilled) is not None:
        size += _SEED_BYTES // 4 + len(said.url) + text_bytes(said.redirect_urls) + text_bytes(said.retry_reasons)
    return size


def text_bytes(texts: Iterable[str]) -> int:
    """What a list of strings takes."""
    return sum(TEXT_BYTES + len(text) for text in texts)


def object_bytes(value: object) -> int:
    """What JSON objects take, those within them included; one that is within itself counts once."""
    size, left, met = 0, [value], set[int]()
    while left:
        value = left.pop()
        size += getsizeof(value)
        if isinstance(value, dict | list | tuple) and id(value) not in met:
            met.add(id(value))
            left += value  # the keys of a dict
            left += value.values() if isinstance(value, dict) else ()
    return size
