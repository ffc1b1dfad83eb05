"""Pauses that grow: before a retry, and of a host that is left alone; and what Retry-After says."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from email.utils import format_datetime

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from site_spider.frontier.backoff import HostBackoff, pause_seconds, retry_after_seconds


@given(attempt=st.integers(1, 200), jitter=st.floats(0, 1))
def test_a_pause_doubles_up_to_the_longest_plus_half(attempt: int, jitter: float) -> None:
    base = min(120.0, 2.0 * 2.0 ** (attempt - 1))
    assert base <= pause_seconds(attempt, 2.0, 120.0, jitter) <= 1.5 * base
    assert pause_seconds(1, 2.0, 120.0, jitter) + pause_seconds(2, 2.0, 120.0, 0.0) > 5  # seconds that sites are away


NOW = 1_700_000_000.0


def date(seconds: float) -> str:
    return format_datetime(datetime.fromtimestamp(NOW + seconds, UTC), usegmt=True)


@pytest.mark.parametrize(
    ("value", "sent", "seconds"),
    [("7", "", 7), (" 7 ", "", 7), ("99999999999999999999", "", 120), ("0", date(9), 0), ("-1", "", None),
     ("soon", date(0), None), ("", "", None), (date(9), "", 9), (date(-9), "soon", 0), (date(9_000), "", 120),
     (date(3_609), date(3_600), 9), (date(-3_591), date(-3_600), 9)],
)  # fmt: skip
def test_retry_after_is_read_in_both_forms_and_capped(value: str, sent: str, seconds: float | None) -> None:
    assert retry_after_seconds(value, sent, NOW, 120.0) == seconds


@pytest.mark.parametrize("form", ["%a %b %e %H:%M:%S %Y", "%A, %d-%b-%y %H:%M:%S GMT", "%a, %d %b %Y %H:%M:%S -0000"])
def test_a_date_without_a_zone_is_in_utc_wherever_the_process_is(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """RFC 9110: also the obsolete forms of a date are to be understood."""
    monkeypatch.setenv("TZ", "Asia/Shanghai")
    time.tzset()
    try:
        value = datetime.fromtimestamp(NOW + 9, UTC).strftime(form)
        assert retry_after_seconds(value, date(0), NOW, 120.0) == 9
    finally:
        monkeypatch.undo()
        time.tzset()


FIRST, LONGEST = 2.0, 120.0


def step(backoff: HostBackoff, name: str) -> int:
    """How often the pause of a host was doubled, and once more; 0 when all is well."""
    host = backoff.hosts.get(name)
    return 0 if host is None else host.step


class Model(RuleBasedStateMachine):
    """One host, crawled as the frontier does: nothing starts before the pause is over."""

    def __init__(self) -> None:
        super().__init__()
        self.backoff = HostBackoff(FIRST, LONGEST)
        self.now = 0.0
        self.until = 0.0
        self.out: list[float] = []  # when each request that is out began

    @rule(seconds=st.sampled_from([0.25, 1.0, 5.0, 60.0, 500.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @precondition(lambda self: self.now > self.until)
    @rule()
    def begin(self) -> None:
        self.out.append(self.now)

    @precondition(lambda self: self.out)
    @rule(
        jitter=st.floats(0, 1), asked=st.sampled_from([0.0, 0.0, 7.0]), index=st.integers(0, 9), is_retry=st.booleans()
    )
    def refused(self, jitter: float, asked: float, index: int, is_retry: bool) -> None:
        began = self.out.pop(index % len(self.out))
        before = step(self.backoff, "h")
        until = self.backoff.overloaded("h", began, self.now, jitter, asked, is_retry=is_retry)
        is_new_step = not before or began > self.last_step
        after = before
        if is_new_step:
            after = 1 if self.is_well or not before else before + (not is_retry)
        assert step(self.backoff, "h") == after
        if is_new_step:
            self.last_step, self.is_well = self.now, False
            shortest = min(LONGEST, FIRST * 2 ** (after - 1))
            assert until >= self.now + shortest
        assert until >= max(self.until, self.now + asked)
        longest = 1.5 * min(LONGEST, FIRST * 2 ** (after - 1)) if is_new_step else 0.0
        assert until <= max(self.until, self.now + max(asked, longest))
        self.until = until

    @precondition(lambda self: self.out)
    @rule(index=st.integers(0, 9))
    def answered(self, index: int) -> None:
        began = self.out.pop(index % len(self.out))
        before = step(self.backoff, "h")
        self.backoff.answered("h", began, self.now)
        after = step(self.backoff, "h")
        assert after <= before
        assert began > self.last_step or after == before, "a slow page says nothing of now"
        self.is_well = self.is_well or began > self.last_step
        quiet = self.now - self.until
        pauses = [min(LONGEST, FIRST * 2 ** (step - 1)) for step in range(after + 1, before + 1)]
        assert sum(pauses) <= max(0.0, quiet)
        if before and began > self.last_step and quiet > 1.5 * LONGEST * before:
            assert after == 0

    last_step = -1.0
    is_well = False

    @invariant()
    def what_is_well_is_forgotten(self) -> None:
        assert len(self.backoff.hosts) == (step(self.backoff, "h") > 0)


Model.TestCase.settings = settings(stateful_step_count=40)
test_the_backoff_keeps_its_rules_whatever_happens = Model.TestCase


@given(steps=st.integers(1, 5))
def test_steps_are_forgiven_one_by_one_after_quiet(steps: int) -> None:
    """Each after as much quiet as its pause took; not at once with the first page that comes."""
    backoff, now = HostBackoff(FIRST, LONGEST), 0.0
    for _ in range(steps):
        now = backoff.overloaded("h", now + 0.001, now + 0.001, 0.0)
    seen = [steps]
    while step(backoff, "h") and now < 10_000:
        now += 0.5
        backoff.answered("h", now, now)
        if step(backoff, "h") != seen[-1]:
            seen.append(step(backoff, "h"))
    assert seen == list(range(steps, -1, -1))


def test_the_hosts_of_the_past_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("site_spider.frontier.backoff._MOST_HOSTS", 3)
    backoff = HostBackoff(FIRST, LONGEST)
    for number in range(10):
        backoff.overloaded(f"h{number}", 0.0, 1.0, 0.0)
    assert len(backoff.hosts) == 3
    assert step(backoff, "h9") == 1


def test_pages_that_are_refused_for_ever_do_not_slow_a_host_that_is_well() -> None:
    backoff, now = HostBackoff(FIRST, LONGEST), 0.0
    for _ in range(9):
        now = backoff.overloaded("h", now + 0.1, now + 0.1, 0.0)
        assert now - backoff.hosts["h"].since == pytest.approx(FIRST)
        backoff.answered("h", now + 0.1, now + 0.2)
