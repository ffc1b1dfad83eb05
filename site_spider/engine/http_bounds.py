"""Bounds on the parts of an HTTP answer that are not content, for both handlers."""

from __future__ import annotations

MAX_HEAD_BYTES = 65_536  # of all heads of an answer: interim answers (1xx) have one each
MAX_HEAD_LINES = 4_000
MAX_INTERIM_ANSWERS = 100
MAX_FRAMING_BYTES = 65_536  # of chunk lines, extensions and trailers, beyond as many as of content


class OversizedAnswer(Exception):
    """One of these is passed; it says which."""
