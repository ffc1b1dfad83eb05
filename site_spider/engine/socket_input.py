"""Tells whether a socket has input that the event loop has not read yet."""

from __future__ import annotations

import select


def has_input(fileno: int) -> bool:
    """Whether bytes, or the end of the connection, have come. Takes a microsecond."""
    poll = select.poll()
    poll.register(fileno, select.POLLIN)
    return bool(poll.poll(0))
