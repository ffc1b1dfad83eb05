"""Numbers as sentences for people hold them."""

from __future__ import annotations

from math import isinf


def up_to(seconds: float) -> str:
    """How long something may take at most, such as " up to 30 s"; nothing when it may take for ever."""
    return "" if isinf(seconds) else f" up to {seconds:.0f} s"


def plural(number: int, noun: str) -> str:
    """The number with its noun."""
    many = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else many}"
