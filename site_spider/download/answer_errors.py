"""Why an answer cannot be read."""

from __future__ import annotations


class OddAnswer(Exception):
    """The answer is not plain HTTP/1; it says why."""


class NoAnswer(Exception):
    """What came is no answer at all, and no reader would make one of it."""
