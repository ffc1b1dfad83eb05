"""Host, path and query of a URL in its usual form, without `urlparse`."""

from __future__ import annotations

import re
from typing import NamedTuple

_USUAL = re.compile(r"https?://([a-z0-9._-]+)(?::[0-9]+)?(/[^;?#]*(?:\?[^#]+)?)")


class PlainUrl(NamedTuple):
    """What `urlparse` says of it too."""

    host: str  # its `hostname`
    target: str  # path and query, as they stand


def plain_url(url: str) -> PlainUrl | None:
    """None for a URL of another form: with a user, a fragment, parameters, capitals in the host, ..."""
    found = _USUAL.fullmatch(url)
    return None if found is None else PlainUrl(found[1], found[2])
