"""How long an overloaded host is left alone: steps up, and steps down again."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from site_spider.frontier import retry_and_redirect
from site_spider.frontier.retry_and_redirect import HostBackoff

FIRST, LONGEST = 2.0, 120.0


def step(backoff: HostBackoff, name: str) -> int:
    """How often the pause of a host was doubled, and once more; 0 when all is well."""
    host = backoff._hosts.get(name)
    return 0 if host is None else host.step


class Model(RuleBasedStateMachine):
    """One host, crawled as the frontier does: nothing starts before the pause is over."""

    def __init__(self) -> None:
        super().__init__()
        self.backoff = HostBackoff(FIRST, LONGEST)
        self.now = 0.0
        self.until = 0.0
        self.out: list[float] = []  # when each request that is out began
        self.steps_since: list[float] = []  # moments of steps that are not forgiven

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
        assert until <= max(self.until, self.now + max(asked, 1.5 * LONGEST))
        self.until = until

    @precondition(lambda self: self.out)
    @rule(index=st.integers(0, 9))
    def answered(self, index: int) -> None:
        began = self.out.pop(index % len(self.out))
        before = step(self.backoff, "h")
        self.backoff.answered("h", began, self.now)
        after = step(self.backoff, "h")
        assert after <= before
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
        assert len(self.backoff) == (step(self.backoff, "h") > 0)


Model.TestCase.settings = settings(stateful_step_count=40)
test_the_backoff_keeps_its_rules_whatever_happens = Model.TestCase


def test_answers_to_requests_that_were_out_together_are_one_step() -> None:
    """Ten refusals of ten requests, the last of them long after the first."""
    backoff = HostBackoff(FIRST, LONGEST)
    until = {backoff.overloaded("h", 0.0, 0.1 * n, 0.0) for n in range(1, 11)}
    assert step(backoff, "h") == 1
    assert until == {2.1}


def test_the_pause_doubles_up_to_the_longest() -> None:
    """Each time a request is refused that began after the pause."""
    backoff, now, pauses = HostBackoff(FIRST, 10.0), 0.0, []
    for _ in range(5):
        until = backoff.overloaded("h", now + 0.1, now + 0.2, 0.0)
        pauses.append(round(until - now - 0.2, 6))
        now = until
    assert pauses == [2, 4, 8, 10, 10]


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


def test_what_began_before_the_step_forgives_nothing() -> None:
    """A slow page that was asked for when all was well says nothing of now."""
    backoff = HostBackoff(FIRST, LONGEST)
    backoff.overloaded("h", 1.0, 1.0, 0.0)
    backoff.answered("h", 0.5, 1_000.0)
    assert step(backoff, "h") == 1


def test_the_server_may_ask_for_more() -> None:
    """Retry-After counts besides the pause, also in an answer that makes no step."""
    backoff = HostBackoff(FIRST, LONGEST)
    assert backoff.overloaded("h", 0.0, 1.0, 0.0, asked_seconds=30.0) == 31.0
    assert backoff.overloaded("h", 0.0, 2.0, 0.0, asked_seconds=60.0) == 62.0


def test_the_hosts_of_the_past_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory does not grow with them."""
    monkeypatch.setattr(retry_and_redirect, "_MOST_HOSTS", 3)
    backoff = HostBackoff(FIRST, LONGEST)
    for number in range(10):
        backoff.overloaded(f"h{number}", 0.0, 1.0, 0.0)
    assert len(backoff) == 3
    assert step(backoff, "h9") == 1


def test_pages_that_are_refused_for_ever_do_not_slow_a_host_that_is_well() -> None:
    """One page in ten answers 503, each time: the pause stays the first one."""
    backoff, now = HostBackoff(FIRST, LONGEST), 0.0
    for number in range(1, 200):
        now += 0.1
        if number % 10:
            backoff.answered("h", now, now)
        else:
            until = backoff.overloaded("h", now, now, 0.0)
            assert round(until - now, 6) == FIRST
            now = until


def test_retries_of_what_was_refused_make_no_step() -> None:
    """Though nothing else is left of the host."""
    backoff, now = HostBackoff(FIRST, LONGEST), 1.0
    for attempt in range(5):
        until = backoff.overloaded("h", now, now, 0.0, is_retry=attempt > 0)
        assert round(until - now, 6) == FIRST
        now = until + 0.1
    assert round(backoff.overloaded("h", now, now, 0.0) - now, 6) == 2 * FIRST
