"""Why an answer cannot be read."""

from __future__ import annotations


class OddAnswer(Exception):
    """The answer is not plain HTTP/1; it says why."""


class OversizedAnswer(Exception):
    """Parts of the answer that are not content are larger than any reader should take; it says which."""


class NoAnswer(Exception):
    """What came is no answer at all, and no reader would make one of it."""
