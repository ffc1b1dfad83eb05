"""Bounds on what of an HTTP answer is no content, for both handlers; and what a socket has to read.

Apart from Twisted's client, which takes a tenth of a start to import, and which most crawls never need.
"""

from __future__ import annotations

import select

MAX_HEAD_BYTES = 65_536  # of all heads of an answer: interim answers (1xx) have one each
MAX_HEAD_LINES = 4_000
MAX_INTERIM_ANSWERS = 100
MAX_FRAMING_BYTES = 65_536  # of chunk lines, extensions and trailers, beyond as many as of content


class OversizedAnswer(Exception):
    """One of these is passed; it says which."""


def has_input(fileno: int) -> bool:
    """Whether bytes, or the end of the connection, have come. Takes a microsecond."""
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(0))
