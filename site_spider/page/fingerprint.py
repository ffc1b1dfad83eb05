"""The fingerprint of a page, for a plain GET of a URL.

The same bytes as those of Scrapy's own fingerprinter for such a request, so that both can be
mixed, at a fraction of its time: no Request is needed, and links repeat, so the last ones
are kept. Within a scope, such as a task, the same page has a fingerprint of its own.
"""

from __future__ import annotations

import hashlib
import json
from functools import lru_cache

from site_spider.page.url import canonical_url

_KEPT = 16_384  # fingerprints by URL: about 5 MB


@lru_cache(maxsize=_KEPT)
def page_fingerprint(url: str, scope: str | None = None) -> bytes:
    """The fingerprint of a GET of `url` without a body. Raises ValueError as `canonical_url` does."""
    described = f'{{"body": "", "headers": {{}}, "method": "GET", "url": {json.dumps(canonical_url(url))}}}'
    return scoped(hashlib.sha1(described.encode(), usedforsecurity=False).digest(), scope)


def scoped(fingerprint: bytes, scope: str | None) -> bytes:
    """The fingerprint within a scope; itself without one, so that those of earlier versions still hold."""
    if scope is None:
        return fingerprint
    prefix = scope.encode("utf-8", "replace")
    return hashlib.sha1(b"%b\n%b" % (prefix, fingerprint), usedforsecurity=False).digest()
