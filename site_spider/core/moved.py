"""What a message says of a request that another process of the group has sent on.

It stands in a seed's meta under `site_moved`, a name that no other producer may use. There
are two kinds: a link that nobody has asked for yet, and an attempt at a page that was begun
elsewhere (a redirect to another process' host, a retry), which goes on here as it would have
there: same document, same counts.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any, Final, Self

from site_spider.core import seed_fields as check
from site_spider.core.reason import refused, shown
from site_spider.core.url import MAX_HOST_CHARACTERS, check_url

KEY: Final = "site_moved"  # in a message's meta
_MOST = 1_000_000  # of a count
_MOST_WORDS = 200  # URLs or reasons in a list


@dataclass(frozen=True, slots=True)
class Moved:
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

    @property
    def is_link(self) -> bool:
        """Whether nobody has asked for it yet, so that it is compared with what was done."""
        return not self.url

    def fields(self) -> dict[str, Any]:
        """For the message; what is as usual is left out."""
        usual = _USUAL
        return {name: value for name, value in asdict(self).items() if value != usual[name]}

    @classmethod
    def read(cls, value: object) -> Self | None:
        """From a message; None for null. Raises SeedError for what `fields` would not have written."""
        if value is None:
            return None
        given = check.mapping(f"meta.{KEY}", value)
        if unknown := given.keys() - _USUAL.keys():
            raise refused(f"meta.{KEY}", f"key {shown(min(unknown))} is not known")
        return cls(
            url=check_url(given["url"]) if given.get("url") else "",
            method=check.method(given.get("method")),
            anchor_host=_host(given.get("anchor_host")),
            retry_times=_count("retry_times", given),
            retry_reasons=_words("retry_reasons", given, str),
            redirect_times=_count("redirect_times", given),
            redirect_ttl=None if given.get("redirect_ttl") is None else _count("redirect_ttl", given),
            redirect_urls=_words("redirect_urls", given, str),
            redirect_reasons=_words("redirect_reasons", given, str | int),
            unraised_priority=_unraised(given.get("unraised_priority")),
        )


_USUAL: Final = {field.name: field.default for field in fields(Moved)}


def _count(name: str, given: dict[str, Any]) -> int:
    return check.integer(f"meta.{KEY}.{name}", given.get(name), 0, _MOST)


def _unraised(value: object) -> int | None:
    return None if value is None else check.priority(f"meta.{KEY}.unraised_priority", value)


def _host(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str) or len(value) > MAX_HOST_CHARACTERS:
        raise refused(f"meta.{KEY}.anchor_host", f"{shown(value)} is not a host")
    return value


def _words(name: str, given: dict[str, Any], kind: Any) -> tuple[Any, ...]:
    words = given.get(name) or []
    if not isinstance(words, list) or len(words) > _MOST_WORDS:
        raise refused(f"meta.{KEY}.{name}", f"{shown(words)}, but must be a list of at most {_MOST_WORDS}")
    for word in words:
        if not isinstance(word, kind) or isinstance(word, bool):
            raise refused(f"meta.{KEY}.{name}", f"{shown(word)} cannot stand there")
    return tuple(words)
