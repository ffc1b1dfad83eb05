"""When a page is asked for again: its interval, what is due, and who has claimed it to produce its seed.

Theory of operation. A check of a page with `if_changed` leaves in its document when the next one is due.
`scrapy recrawl` takes a page in three steps. It writes a claim into the document, on condition that the
claim it has read is still there, so of two runs one gets the page. It produces the seed, which names the
claim in a header. It marks the claim as produced. Of a run that was killed claims are left that are not
marked: when their lease is over, the seed log says whether the seed is there. So a page is neither produced
twice nor forgotten. A claim counts until the page was checked: it names the check that it was made after.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from enum import Enum, auto
from typing import Any, NamedTuple, Self

from site_spider import options, runtime
from site_spider.options import SettingsView

LONGEST_SECONDS = 3_000_000_000  # a century, with which times can be reckoned
LEASE_SECONDS = 60.0  # in which a claimed page is produced, or never by this claim
CLAIM = "recrawl"  # the field; no result has it
FACTS = (
    "status", "checked_at", "fetched_at", "next_at", "interval_s", "failed_checks", "gone_checks", "gone_at",
)  # fmt: skip
_GONE = (404, 410)
_NEAR = timedelta(minutes=1)
_SKEW_MS = 3_600_000  # of clocks, that is believed; of a seed that is farther ahead Kafka takes none
_LAST_YEAR = 9_000  # of a time to which something can be added
_CLAIMED, _PRODUCED = "claimed", "produced"

Document = Mapping[str, Any]


class CheckRules(NamedTuple):
    """The settings."""

    least_s: int
    most_s: int
    first_s: int  # of a page that was never checked
    error_s: int
    max_errors: int
    gone_after: int

    @classmethod
    def read(cls, settings: SettingsView) -> Self:
        """Raises ConfigError."""
        least = options.integer(settings, "SITE_RECRAWL_MIN_SECONDS", 1)
        most = options.integer(settings, "SITE_RECRAWL_MAX_SECONDS", least, LONGEST_SECONDS)
        return cls(
            least,
            most,
            options.integer(settings, "SITE_RECRAWL_FIRST_SECONDS", least, most),
            options.integer(settings, "SITE_RECRAWL_ERROR_SECONDS", 1, LONGEST_SECONDS),
            options.integer(settings, "SITE_RECRAWL_MAX_ERRORS", 1),
            options.integer(settings, "SITE_GONE_AFTER", 1),
        )


class Check(NamedTuple):
    """What a check leaves in the document, but for its time."""

    wait_s: int  # until the next one
    interval_s: int
    failed_checks: int = 0  # in a row
    gone_checks: int = 0
    is_gone: bool = False


def check_of(rules: CheckRules, known: Document, status: int | None, *, is_same: bool | None, is_repeat: bool) -> Check:
    """Of a page that answered so, or not at all; it is the same, or another, or nobody can say.

    `is_repeat`: this seed has been counted before a crash.
    """
    interval = _whole(known.get("interval_s")) or rules.first_s
    if is_same or is_well(status):
        if is_same is not None and "body_hash" in known and is_well(known.get("status")) and not is_repeat:
            interval = interval + max(1, interval // 2) if is_same else interval // 2
        interval = min(max(interval, rules.least_s), rules.most_s)
        return Check(interval, interval)
    more, failed = int(not is_repeat), in_a_row(rules, known, "failed_checks")
    gone = max(in_a_row(rules, known, "gone_checks") + more, 1) if status in _GONE else 0
    return Check(rules.error_s, interval, max(failed + more, 1), gone, gone >= rules.gone_after)


def later(at: str, seconds: float) -> str:
    """A time of a document, so much later."""
    moment = datetime.fromisoformat(at) + timedelta(seconds=seconds)
    return moment.isoformat(timespec="milliseconds")


def at_least(at: str, written_ms: int) -> str:
    """A time of a document; not before its seed was written, by a clock that may be ahead of this one.

    Else the repeat of the seed would take what its first attempt has stored for that of an earlier one.
    """
    behind_ms = written_ms - round(datetime.fromisoformat(at).timestamp() * 1000)
    return later(at, behind_ms / 1000) if 0 < behind_ms <= _SKEW_MS else at


class CheckClaim(NamedTuple):
    """Of a page by one batch of a run."""

    state: str
    at: datetime
    batch: str
    check: str  # after which it was made

    @classmethod
    def new(cls, document: Document, now: datetime, batch: str) -> Self:
        """Of this document as it was read."""
        return cls(_CLAIMED, now, batch, _last_check(document))

    @classmethod
    def read(cls, document: Document) -> Self | None:
        """The one that counts; None if there is none."""
        with suppress(KeyError, ValueError, AttributeError):
            state, at, batch, check = document[CLAIM].split(" ")
            if check == _last_check(document) and state in (_CLAIMED, _PRODUCED):
                return cls(state, _utc(at), batch, check)
        return None

    @staticmethod
    def is_ours(stored: object) -> bool:
        """Whether the field holds nothing, or a claim: not what a producer of documents has there."""
        return stored is None or (isinstance(stored, str) and stored.startswith((_CLAIMED, _PRODUCED)))

    @property
    def text(self) -> str:
        return f"{self.state} {self.at.isoformat(timespec='milliseconds')} {self.batch} {self.check}"

    @property
    def as_produced(self) -> Self:
        """When the seed is durable."""
        return self._replace(state=_PRODUCED)


class Standing(Enum):
    """What becomes of a document in a round."""

    DUE = auto()
    LATER = auto()
    ENDED = auto()  # it has failed too often
    HELD = auto()  # another run produces it, or has been killed a moment ago
    IN_DOUBT = auto()  # the lease is over, and nobody has said that it was produced


class Calendar(NamedTuple):
    """What is due; `every_s` for all pages alike, None: each after its own interval."""

    rules: CheckRules
    every_s: int | None = None

    def before(self, now: datetime) -> dict[str, str]:
        """Times that a document which is due cannot exceed, as far as a store can tell."""
        rules = self.rules
        least = min(rules.least_s, rules.error_s) if self.every_s is None else self.every_s
        bounds = {"checked_at": now - timedelta(seconds=least)}
        if self.every_s is None:
            bounds["next_at"] = now
        return {name: moment.isoformat(timespec="milliseconds") for name, moment in bounds.items()}

    def standing(self, document: Document, now: datetime) -> Standing:
        rules, checked = self.rules, _checked(document)
        is_going = 0 < in_a_row(rules, document, "gone_checks") < rules.gone_after  # which is told first
        if in_a_row(rules, document, "failed_checks") >= rules.max_errors and not is_going:
            return Standing.ENDED
        if checked is not None and now < self._due_at(document, checked):
            return Standing.LATER
        if (claim := CheckClaim.read(document)) is None:
            return Standing.DUE
        if claim.state == _PRODUCED:  # no seed is lost: only somebody who deletes a topic does that
            patience = max(self.every_s or 0, rules.most_s)
            return Standing.LATER if now < claim.at + timedelta(seconds=patience) else Standing.DUE
        return Standing.HELD if abs(now - claim.at) < timedelta(seconds=LEASE_SECONDS) else Standing.IN_DOUBT

    def _due_at(self, document: Document, checked: datetime) -> datetime:
        if self.every_s is not None:
            return checked + timedelta(seconds=self.every_s)
        if (said := _time(document, "next_at")) is not None and said > checked:
            return said  # else by a check before the last one
        own = min(_whole(document.get("interval_s")) or self.rules.first_s, self.rules.most_s)
        return checked + timedelta(seconds=own if is_well(document.get("status")) else self.rules.error_s)


def _last_check(document: Document) -> str:
    said = f"{document.get('checked_at')}/{document.get('fetched_at')}".replace(" ", "_")
    return said.encode("utf-8", "replace").decode()


def _checked(document: Document) -> datetime | None:
    """When it was last asked for; a failure has no `checked_at`, an unchanged page keeps its `fetched_at`."""
    found = (_time(document, name) for name in ("checked_at", "fetched_at"))
    return max((moment for moment in found if moment is not None), default=None)


def in_a_row(rules: CheckRules, document: Document, name: str) -> int:
    """Checks so far, of a page that failed; those before a fetch that was no check are over."""
    next_at, checked = _time(document, "next_at"), _checked(document)
    error_s = timedelta(seconds=rules.error_s)
    is_of_check = next_at is None or checked is None or abs(next_at - checked - error_s) < _NEAR
    status = document.get("status")
    is_failed = status in _GONE if name == "gone_checks" else not is_well(status)
    return _whole(document.get(name)) if is_of_check and is_failed else 0


def _time(document: Document, name: str) -> datetime | None:
    with suppress(KeyError, ValueError, TypeError):
        return _utc(document[name])
    return None


def _utc(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.year > _LAST_YEAR:
        raise ValueError(f"{text} is no time of a check")
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def is_due(known: Document) -> bool:
    """Whether the time of its next check has come."""
    return (next_at := _time(known, "next_at")) is not None and next_at <= runtime.now(UTC)


def is_checked_since(known: Document, written_ms: int) -> bool:
    """Whether a seed that was written then has been counted before."""
    return _is_since(_checked(known), written_ms)


def has_changed_since(known: Document, written_ms: int) -> bool:
    """Whether the version that is stored was found then or later."""
    return _is_since(_time(known, "changed_at"), written_ms)


def _is_since(moment: datetime | None, written_ms: int) -> bool:
    return moment is not None and 0 < written_ms <= moment.timestamp() * 1000


def is_well(status: object) -> bool:
    """Whether it is that of a good answer."""
    return isinstance(status, int) and 200 <= status < 300


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
