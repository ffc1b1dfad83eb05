"""What of a body is kept: text, or on request the bytes of binary content, up to a limit."""

from __future__ import annotations

from base64 import b64encode
from typing import NamedTuple

LONGEST_CHARACTER_BYTES = 4  # in UTF-8


class BodyLimits(NamedTuple):
    """The settings SITE_BODY_MAX_BYTES (0: no limit) and SITE_KEEP_BINARY."""

    max_bytes: int = 10_000_000
    keep_binary: bool = False


class KeptBody(NamedTuple):
    """Text, or bytes as base64 text, or neither; `truncated` when it is only the beginning."""

    text: str | None = None
    base64: str | None = None
    truncated: bool = False


def keep_text(text: str, limits: BodyLimits) -> KeptBody:
    """The text, cut between two characters so that its UTF-8 fits."""
    if not limits.max_bytes or len(text) * LONGEST_CHARACTER_BYTES <= limits.max_bytes:
        return KeptBody(text)  # what nearly every page is, without encoding it
    encoded = text.encode("utf-8", "replace")
    if len(encoded) <= limits.max_bytes:
        return KeptBody(text)
    return KeptBody(encoded[: limits.max_bytes].decode("utf-8", "ignore"), truncated=True)


def keep_binary(body: bytes, limits: BodyLimits) -> KeptBody:
    """The bytes, if they are wanted at all."""
    if not limits.keep_binary or not body:
        return KeptBody()
    kept = body[: limits.max_bytes] if limits.max_bytes else body
    return KeptBody(base64=b64encode(kept).decode("ascii"), truncated=len(kept) < len(body))
