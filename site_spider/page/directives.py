"""What a page says to robots of itself, and which URL it calls its canonical one: the headers' half of it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from hashlib import blake2b
from typing import Final

from site_spider.page.links import LinkBase, trimmed

_LONGEST = 2_000  # characters that are read of a header or a meta tag
_LONGEST_STORED = 1_000
_WITH_VALUES: Final = frozenset(
    ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
)  # the colon behind others names a robot
_ROBOT: Final = re.compile(r"[^\s\d][^\s]*")  # no part of a date
_FORBIDDEN: Final = {"nofollow": ("nofollow", "none"), "noindex": ("noindex", "none")}
# of a Link header: the URL and its parameters; of these, the name and a quoted string or a token
_PARAMETER = r"""\s*+;\s*+([^\s;,="<>]*+)\s*+(?:=\s*+(?:"((?:[^"\\]|\\.)*+)"|([^\s;,"<>]*+)))?+"""
_LINK, _PARAMETERS = re.compile(rf"<([^<>]*+)>((?:{_PARAMETER})*+)"), re.compile(_PARAMETER)


def directives(written: Iterable[str]) -> list[str]:
    """The directives of headers X-Robots-Tag or of meta tags for all robots, lower-case, each once.

    Those behind the name of a robot are for that one alone.
    """
    found: dict[str, None] = {}
    for line in written:
        for directive in line[:_LONGEST].lower().split(","):
            name, colon, _ = directive.partition(":")
            if colon and _ROBOT.fullmatch(name.strip()) and name.strip() not in _WITH_VALUES:
                break
            if said := " ".join(directive.split()):
                found[said] = None
    return list(found)


def as_stored(said: Iterable[str]) -> str | None:
    """Directives in one text."""
    return ", ".join(said)[:_LONGEST_STORED] or None


def forbids(said: Iterable[str], what: str) -> bool:
    """Whether nofollow or noindex is among directives; a meta tag may separate them by blanks."""
    return any(word in _FORBIDDEN[what] for one in said for word in one.split())


def canonical_of_header(values: Iterable[str], url: str) -> str | None:
    """The URL of a header Link with rel=canonical, of a page that was found at `url`."""
    for value in values:
        for target, parameters, *_ in _LINK.findall(value[: 4 * _LONGEST]):
            # backwards, because the first of several of one name counts
            said = {name.lower(): text or word for name, text, word in _PARAMETERS.findall(parameters)[::-1]}
            if "canonical" in said.get("rel", "").lower().split() and "anchor" not in said:  # of another page
                return absolute(target, LinkBase.parse(url, "utf-8"))
    return None


def absolute(written: str, base: LinkBase) -> str | None:
    """A URL as a parser of HTML or a header gives it; None for one that leads nowhere by http."""
    href = trimmed(written.replace("&", "&amp;"))  # which `trimmed` undoes
    return base.join(href) if href else None


def text_hash(text: str) -> str | None:
    """The same for texts that differ in white space alone; None of one without words."""
    words = " ".join(text.split())
    return blake2b(words.encode("utf-8", "replace"), digest_size=16).hexdigest() if words else None
