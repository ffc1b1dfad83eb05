"""The kind of a failure, from its description: few values, fit to be counted and grouped by.

A description begins with the kind and goes on with what differs from page to page. What others write, such as
a middleware of one's own, may name a host or a number anywhere.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

_LOOKED_AT: Final = 500  # characters
_MOST_CHARACTERS: Final = 80
_OTHER: Final = "other"
_STATUS: Final = re.compile(r"HTTP [0-9]{3}\b")
_NAME: Final = re.compile(r"[A-Za-z_]\w*(?: in the spider| in an item pipeline)?")
_OWN_FILES: Final = "robots.txt"  # has a dot, and is no host
_VARYING: Final = re.compile(rf"""(?<!\S)(?!{re.escape(_OWN_FILES)}(?:\s|$))\S*[0-9./@'"`<>\[\]]\S*""")


def failure_name(description: str) -> str:
    """Such as `DNSLookupError`, `HTTP 404`, `TimeoutError` or `Forbidden by robots.txt`."""
    return _name(description[:_LOOKED_AT])


@lru_cache(maxsize=1_000)  # most descriptions come again
def _name(description: str) -> str:
    if status := _STATUS.match(description):
        return status[0]
    kind = description.partition(": ")[0].partition(" (after ")[0].strip(" :")
    if not _NAME.fullmatch(kind):
        kind = " ".join(_VARYING.sub("", kind).split())
    return kind[:_MOST_CHARACTERS].strip() or _OTHER
