"""Pauses that grow: before a retry, and how long a host that answers 429 or 503 is left alone.

Each overload is a *step*: the host is left alone for a pause that doubles from step
to step. Only a request that began after the last step makes a new one, so answers to requests that were
out together count once. A step is forgiven when the host has been quiet for as long as that step's pause,
counted from the end of the pause, and then answers well; so the way down takes about as long as the way
up did.

Some pages answer 503 for ever, on hosts that are well. So after an answer that was good the next overload
is a first step again, and the retry of a page that was refused makes no step: it says nothing new of its
host, which is left alone for another pause of the same length.

Time comes in as an argument, in seconds of any clock that does not go backwards.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime

_LONGEST_DOUBLINGS = 30
_MOST_HOSTS = 10_000


def pause_seconds(attempt: int, first_seconds: float, longest_seconds: float, jitter: float) -> float:
    """Before the n-th retry (from 1): the first pause doubled each time, plus up to half of it.

    `jitter` (0 to 1) chooses there, so that many retries do not come at once. The sum over
    two retries is at least three times the first pause.
    """
    base = first_seconds * float(2 ** min(attempt - 1, _LONGEST_DOUBLINGS))
    return min(longest_seconds, base) * (1 + jitter / 2)


def retry_after_seconds(value: str, date: str, now: float, longest_seconds: float) -> float | None:
    """A Retry-After header in either form (RFC 9110: seconds, or a date), capped; None when unusable.

    A date is one of the server's clock, whose time the header Date says; without it that is `now`, a Unix time.
    """
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text[:12]), longest_seconds)
    if (moment := _moment(text)) is None:
        return None
    sent = _moment(date)
    return min(max(0.0, moment - (now if sent is None else sent)), longest_seconds)


def _moment(text: str) -> float | None:
    try:
        moment = parsedate_to_datetime(text)
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    except (TypeError, ValueError, OverflowError):
        return None


@dataclass(slots=True)
class _Host:
    step: int = 0
    since: float = 0.0  # of the last step
    until: float = 0.0  # left alone
    quiet_since: float = 0.0
    is_well: bool = False  # has answered well since the last step


class HostBackoff:
    """The hosts that were overloaded lately; the longest ago are forgotten first."""

    def __init__(self, first_seconds: float, longest_seconds: float) -> None:
        self._first_seconds = first_seconds
        self._longest_seconds = longest_seconds
        self.hosts: OrderedDict[str, _Host] = OrderedDict()

    def overloaded(
        self, name: str, began: float, now: float, jitter: float, asked_seconds: float = 0.0, *, is_retry: bool = False
    ) -> float:
        """Until when the host is left alone after this answer to a request that began at `began`.

        `asked_seconds` is what the server itself asks for, `jitter` (0 to 1) as for pauses.
        """
        host = self.hosts.setdefault(name, _Host())
        self.hosts.move_to_end(name)
        if not host.step or began > host.since:
            host.step = self._next_step(host, is_retry=is_retry)
            host.since, host.is_well = now, False
            host.until = max(host.until, now + self._pause(host.step, jitter))
        host.until = max(host.until, now + asked_seconds)
        host.quiet_since = max(now, host.until)
        if len(self.hosts) > _MOST_HOSTS:
            self.hosts.popitem(last=False)
        return host.until

    def answered(self, name: str, began: float, now: float) -> None:
        """A request has been answered well; forgives the steps for which it was quiet long enough."""
        host = self.hosts.get(name)
        if host is None or began <= host.since:
            return
        host.is_well = True
        while host.step and now - host.quiet_since >= (pause := self._pause(host.step, 0.0)):
            host.quiet_since += pause
            host.step -= 1
        if not host.step:
            del self.hosts[name]

    def _next_step(self, host: _Host, *, is_retry: bool) -> int:
        if host.is_well:
            return 1
        return max(1, host.step) if is_retry else host.step + 1

    def _pause(self, step: int, jitter: float) -> float:
        return pause_seconds(step, self._first_seconds, self._longest_seconds, jitter)
