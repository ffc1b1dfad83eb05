"""What the message of a spilled request says of its origin.

It stands in a seed's meta under `site_moved`, a name that no other producer may use. There
are two kinds: a link that nobody has asked for yet, and an attempt at a page that was begun
elsewhere (a redirect to another process' host, a retry), which goes on here as it would have
there: same document, same counts.

Any producer can write the same, so each value is checked like a field of a seed. What a message
without a signature (`is_signed`) says never widens which links are followed, and marks no page as
done: `scope_host` and `is_proven`.

A key that a release does not know there makes the message a dead letter of its processes, which may share the
group during an upgrade. So a further value stands beside the URL, where it is ignored, as HOPS does.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any, Final, NamedTuple, Self

from site_spider.page.url import check_url, host_of, same_scope
from site_spider.seed import fields as check
from site_spider.text import refused, shown

KEY: Final = "site_moved"  # in a message's meta
HOPS: Final = "site_hops"  # of a message, beside the URL
PLACE: Final = "site_place"  # likewise: see ListPlace
HOME: Final = "site_home"  # likewise: the host of the seed that a producer wrote
MOST_HOPS: Final = 50  # then a page is crawled where it is: no two processes hand it to and fro for ever
_MOST = 1_000  # of a count
_MOST_WORDS = 200  # URLs or reasons in a list
_LONGEST_WORD = 200  # characters of a reason
_STATUSES = (100, 999)
_LATEST_MS = 2**53
_NOWHERE = "."  # a host that no link has


class ListPlace(NamedTuple):
    """Of a page of a list with pagination."""

    number: int = 1
    known_run: int = 0  # entries in a row before it that an earlier crawl has stored
    known_before_ms: int = 0  # that was before then; 0: nobody has asked


_FIRST: Final = ListPlace()


@dataclass(frozen=True, slots=True)
class Spilled:
    """Where a request comes from; an empty `url` stands for a link that nobody has asked for yet.

    `url` and `method` are those that the page was first asked for with. `anchor_host` is where
    its seed's own page was found, which the scope of links is about; empty when not known yet.
    """

    url: str = ""
    method: str = "GET"
    anchor_host: str = ""
    retry_times: int = 0
    retry_reasons: tuple[str, ...] = ()
    redirect_times: int = 0
    redirect_ttl: int | None = None
    redirect_urls: tuple[str, ...] = ()
    redirect_reasons: tuple[str | int, ...] = ()
    unraised_priority: int | None = None  # what the message's was before redirects raised it
    hops: int = 0  # how many times the page was sent on before
    place: ListPlace = _FIRST
    home: str = ""  # told where the seed names its source, whose secrets go there, too
    scope_host: str = ""  # the anchor host as far as it is believed; not in the message
    is_proven: bool = False  # the message was signed; not in the message

    @property
    def is_link(self) -> bool:
        """Whether nobody has asked for it yet, so that it is compared with what was done."""
        return not self.url

    def fields(self) -> dict[str, Any]:
        """For the message; what is as usual is left out."""
        usual = _USUAL
        said = ((name, value) for name, value in asdict(self).items() if name in usual and name not in _BESIDE)
        return {name: value for name, value in said if value != usual[name]}

    def judged(self, url: str, *, is_proven: bool) -> Self:
        """With what is believed of it, in a message for this URL.

        Without a proof an anchor host is believed within the site of the URL only: from another one no
        link is followed, unless the scope is any.
        """
        host, anchor = host_of(url), self.anchor_host
        is_near = is_proven or not anchor or anchor == host or same_scope("domain", anchor, host)
        return replace(self, scope_host=anchor if is_near else _NOWHERE, is_proven=is_proven)

    @classmethod
    def read(cls, value: object, hops: object, place: object, home: object = None) -> Self:
        """From a message. Raises SeedError for what no process would have written."""
        given = check.mapping(f"meta.{KEY}", value)
        if unknown := given.keys() - _USUAL.keys():
            raise refused(f"meta.{KEY}", f"key {shown(min(unknown))} is not known")
        unraised = given.get("unraised_priority")
        return cls(
            url=check_url(given["url"]) if given.get("url") else "",
            method=check.method(given.get("method")),
            anchor_host=_host(f"meta.{KEY}.anchor_host", given.get("anchor_host")),
            retry_times=_count("retry_times", given),
            retry_reasons=_words("retry_reasons", given, _reason),
            redirect_times=_count("redirect_times", given),
            redirect_ttl=None if given.get("redirect_ttl") is None else _count("redirect_ttl", given),
            redirect_urls=_words("redirect_urls", given, lambda _field, url: check_url(url)),
            redirect_reasons=_words("redirect_reasons", given, _status_or_reason),
            unraised_priority=None if unraised is None else check.priority(f"meta.{KEY}.unraised_priority", unraised),
            hops=max(
                check.integer(HOPS, hops, 0, MOST_HOPS),
                check.integer(f"meta.{KEY}.hops", given.get("hops"), 0, MOST_HOPS),
            ),
            place=_place(place),
            home=_host(HOME, home),
        )


_BESIDE: Final = ("hops", "place", "home")
_DERIVED: Final = frozenset({"scope_host", "is_proven"})
_USUAL: Final = {field.name: field.default for field in fields(Spilled) if field.name not in _DERIVED}


def _count(name: str, given: dict[str, Any]) -> int:
    return check.integer(f"meta.{KEY}.{name}", given.get(name), 0, _MOST)


def _place(value: object) -> ListPlace:
    if value is None:
        return _FIRST
    if not isinstance(value, list) or len(value) != len(_FIRST):
        raise refused(PLACE, f"{shown(value)}, but must be a list of {len(_FIRST)} numbers")
    return ListPlace(*(check.integer(PLACE, number, 0, _LATEST_MS) for number in value))


def _host(name: str, value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        authority = f"[{value}]" if ":" in value else value
        if value == "" or host_of(f"http://{authority}/") == value:
            return value
    raise refused(name, f"{shown(value)} is not a host in lower case, without port")


def _words(name: str, given: dict[str, Any], word: Callable[[str, object], Any]) -> tuple[Any, ...]:
    words = given.get(name) or []
    if not isinstance(words, list) or len(words) > _MOST_WORDS:
        raise refused(f"meta.{KEY}.{name}", f"{shown(words)}, but must be a list of at most {_MOST_WORDS}")
    return tuple(word(f"meta.{KEY}.{name}", each) for each in words)


def _reason(field: str, value: object) -> str:
    if not isinstance(value, str) or len(value) > _LONGEST_WORD or not value.isprintable():
        raise refused(field, f"{shown(value)} is not a printable text of at most {_LONGEST_WORD} characters")
    return value


def _status_or_reason(field: str, value: object) -> str | int:
    return _reason(field, value) if isinstance(value, str) else check.integer(field, value or 0, *_STATUSES)


# --- signature: signs and verifies messages of spilled requests (SITE_SPILL_KEY) -------------------------
# HMAC-SHA256 over the whole message but for the signature itself, as JSON with sorted keys: so what is said
# of one seed cannot be said of another.

SIGNATURE_KEY: Final = "site_signature"  # in a message's meta

Message = dict[str, Any]


def signed(message: Mapping[str, Any], key: bytes) -> Message:
    """The message, which has a `meta`, with its signature."""
    return {**message, "meta": {**message["meta"], SIGNATURE_KEY: _signature(message, key)}}


def is_signed(message: Mapping[str, Any], keys: Sequence[bytes]) -> bool:
    """Whether the signature in `meta` was made with one of the keys."""
    given = message["meta"].get(SIGNATURE_KEY)
    if not isinstance(given, str) or not given.isascii():
        return False
    return any(hmac.compare_digest(given, _signature(message, key)) for key in keys)


def _signature(message: Mapping[str, Any], key: bytes) -> str:
    meta = {name: value for name, value in message["meta"].items() if name != SIGNATURE_KEY}
    text = json.dumps({**message, "meta": meta}, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), "sha256").hexdigest()


def origin_of(url: str, message: Message, value: object, keys: Sequence[bytes]) -> Spilled:
    """What the message of a seed says in `value`. Raises SeedError for what no process of the group has signed."""
    said = Spilled.read(value, message.get(HOPS), message.get(PLACE), message.get(HOME))
    if keys and not is_signed(message, keys):
        raise refused(f"meta.{KEY}", "not signed with SITE_SPILL_KEY; only processes of the group may write it")
    return said.judged(url, is_proven=bool(keys))
