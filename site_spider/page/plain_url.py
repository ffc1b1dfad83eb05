"""What there is to know of a URL in its usual form, without parsing it."""

from __future__ import annotations

import re
from typing import NamedTuple

from site_spider.page.url import USUAL_PORT

_USUAL = re.compile(r"https?://([a-z0-9._-]+)(?::[0-9]+)?(/[^;?#]*(?:\?[^#]+)?)")
_SAFE = re.compile(
    rf"https?://[a-z0-9_-]+(?:\.[a-z0-9_-]+)*{USUAL_PORT}/[A-Za-z0-9/_.~-]*(?:\?[A-Za-z0-9_.~&=-]+)?"
)


class PlainUrl(NamedTuple):
    """What `urlparse` says of it too."""

    host: str  # its `hostname`
    target: str  # path and query, as they stand


def plain_url(url: str) -> PlainUrl | None:
    """None for a URL of another form: with a user, a fragment, parameters, capitals in the host, ..."""
    found = _USUAL.fullmatch(url)
    return None if found is None else PlainUrl(found[1], found[2])


def is_safe(url: str) -> bool:
    """Whether it is sure that Request leaves a URL as it is, in the encoding UTF-8."""
    return _SAFE.fullmatch(url) is not None
