"""Signs and verifies messages of spilled requests (SITE_SPILL_KEY).

HMAC-SHA256 over the whole message but for the signature itself, as JSON with sorted keys: so what
is said of one seed cannot be said of another.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

KEY: Final = "site_signature"  # in a message's meta

Message = dict[str, Any]


def signed(message: Mapping[str, Any], key: bytes) -> Message:
    """The message, which has a `meta`, with its signature."""
    return {**message, "meta": {**message["meta"], KEY: _signature(message, key)}}


def is_signed(message: Mapping[str, Any], keys: Sequence[bytes]) -> bool:
    """Whether the signature in `meta` was made with one of the keys."""
    given = message["meta"].get(KEY)
    if not isinstance(given, str) or not given.isascii():
        return False
    return any(hmac.compare_digest(given, _signature(message, key)) for key in keys)


def _signature(message: Mapping[str, Any], key: bytes) -> str:
    meta = {name: value for name, value in message["meta"].items() if name != KEY}
    text = json.dumps({**message, "meta": meta}, sort_keys=True, separators=(",", ":"))
    return hmac.new(key, text.encode(), "sha256").hexdigest()
