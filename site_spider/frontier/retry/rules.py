"""Whether and when a request is retried: limits by reason, growing pauses, Retry-After."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from email.utils import parsedate_to_datetime

from site_spider import options
from site_spider.errors import ConfigError
from site_spider.options import SettingsView

_LONGEST_DOUBLINGS = 30
_MOST_RETRIES = 100


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


def may_retry(
    reason: str, earlier: Sequence[str], retries: int, usual_limit: int, limits: Mapping[str, int]
) -> bool:
    """Whether one more retry is made.

    `earlier` are the reasons of the retries so far, `retries` their number. A reason that has a
    limit of its own counts by itself; for the others all retries count.
    """
    own = limits.get(reason)
    return retries < usual_limit if own is None else earlier.count(reason) < own


def read_limits(settings: SettingsView, name: str, exceptions: Collection[str]) -> dict[str, int]:
    """A JSON object from reasons (statuses, or some of `exceptions`) to retries; `HTTP 503` for 503.

    Raises ConfigError.
    """
    return {
        _reason(name, str(key), exceptions): _limit(name, str(key), value)
        for key, value in options.mapping(settings, name).items()
    }


def _reason(name: str, key: str, exceptions: Collection[str]) -> str:
    if key in exceptions:
        return key
    if key.isascii() and key.isdigit() and 100 <= int(key) <= 599:
        return f"HTTP {key}"
    raise ConfigError(
        f"{name} has the key {key!r}, but a reason is a status from 100 to 599 or one of: "
        f"{', '.join(sorted(exceptions))}."
    )


def _limit(name: str, key: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MOST_RETRIES:
        raise ConfigError(
            f"{name} has {value!r} for {key}, but must have a whole number from 0 to {_MOST_RETRIES}."
        )
    return value
