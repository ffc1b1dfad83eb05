"""When to try again: exponential pauses with jitter, or what the server asks for."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

_LONGEST_DOUBLINGS = 30


def pause_seconds(attempt: int, first_seconds: float, longest_seconds: float, jitter: float) -> float:
    """Before the n-th retry (from 1): the first pause doubled each time, plus up to half of it.

    `jitter` (0 to 1) chooses there, so that many retries do not come at once. The sum over
    two retries is at least three times the first pause.
    """
    base = first_seconds * float(2 ** min(attempt - 1, _LONGEST_DOUBLINGS))
    return min(longest_seconds, base) * (1 + jitter / 2)


def retry_after_seconds(value: str, now: float, longest_seconds: float) -> float | None:
    """A Retry-After header in either form (RFC 9110: seconds, or a date), capped; None when unusable.

    `now` is a Unix time.
    """
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), longest_seconds)
    try:
        moment = parsedate_to_datetime(text).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(max(0.0, moment - now), longest_seconds)
