"""What is known of robots.txt: fetched once, used for a time, forgotten, and tried again when it is away."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from protego import Protego

from site_spider.frontier.robots import LARGEST_BYTES, RobotsCache, RobotsLimits, State, bounded
from tests.growth import assert_grows

LIMITS = RobotsLimits(
    count=3, size_bytes=1000, age_seconds=1000, wait_seconds=20, first_pause_seconds=2, longest_pause_seconds=50
)
ORIGINS = [f"http://h{number}" for number in range(6)]
origins = st.sampled_from(ORIGINS)


class Model(RuleBasedStateMachine):
    """Fetches as frontier.robots.fetcher does: whoever finds an origin unknown begins."""

    def __init__(self) -> None:
        super().__init__()
        self.cache: RobotsCache[str] = RobotsCache(LIMITS)
        self.now = 0.0
        self.pending: set[str] = set()
        self.rules: dict[str, tuple[str, float]] = {}  # what was found last, and when

    @rule(seconds=st.sampled_from([0.5, 3.0, 30.0, 600.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds

    @rule(origin=origins)
    def look(self, origin: str) -> None:
        look = self.cache.look(origin, self.now)
        assert (look.state is State.PENDING) == (origin in self.pending)
        if look.state is State.UNKNOWN:
            self.cache.begin(origin)
            self.pending.add(origin)
        elif look.state is State.KNOWN:
            assert look.rules == self.rules[origin][0]
        elif look.state is State.LATER:
            assert self.now < look.until <= self.now + LIMITS.wait_seconds
            assert look.reason

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), size=st.sampled_from([0, 10, 600]))
    def found(self, data: st.DataObject, size: int) -> None:
        origin = data.draw(st.sampled_from(sorted(self.pending)))
        self.pending.discard(origin)
        self.rules[origin] = (f"{origin} at {self.now}", self.now)
        self.cache.found(origin, self.rules[origin][0], size, self.now)
        look = self.cache.look(origin, self.now)
        assert (look.state, look.rules) == (State.KNOWN, self.rules[origin][0])
        late = self.cache.look(origin, self.now + LIMITS.age_seconds)
        assert late.state is State.UNKNOWN

    @precondition(lambda self: self.pending)
    @rule(data=st.data(), may_pass=st.booleans())
    def failed(self, data: st.DataObject, may_pass: bool) -> None:
        origin = data.draw(st.sampled_from(sorted(self.pending)))
        self.pending.discard(origin)
        self.cache.failed(origin, "HTTP 503", self.now, 0.5, may_pass=may_pass)
        look = self.cache.look(origin, self.now)
        assert look.state in (State.KNOWN, State.LATER, State.UNREACHABLE, State.UNKNOWN)
        if not may_pass:
            assert look.state is not State.LATER

    @invariant()
    def it_stays_small(self) -> None:
        assert len(self.cache) <= LIMITS.count + len(self.pending)


Model.TestCase.settings = settings(stateful_step_count=50)
test_the_cache_keeps_its_rules_whatever_happens = Model.TestCase


def test_a_file_that_cannot_be_fetched_is_tried_again_for_a_time_and_then_all_is_forbidden() -> None:
    """With doubling pauses, the last attempt at the end of the time; later attempts go on, one at a time."""
    cache: RobotsCache[str] = RobotsCache(LIMITS)
    now, attempts, states = 0.0, [], []
    while now < 200:
        look = cache.look("http://h", now)
        if look.state is State.UNKNOWN:
            cache.begin("http://h")
            cache.failed("http://h", "HTTP 503", now, 0.0, may_pass=True)
            attempts.append(now)
            states.append(cache.look("http://h", now).state)
        now += 0.5
    assert attempts == [0, 2, 6, 14, 20, 52, 102, 152]
    assert states == [State.LATER] * 4 + [State.UNREACHABLE] * 4


def test_rules_that_cannot_be_fetched_anew_stay_in_use() -> None:
    """RFC 9309, 2.4; with attempts in between."""
    cache: RobotsCache[str] = RobotsCache(LIMITS)
    cache.begin("http://h")
    cache.found("http://h", "old", 10, 0.0)
    cache.begin("http://h")
    cache.failed("http://h", "HTTP 503", 1000.0, 0.0, may_pass=True)
    assert cache.look("http://h", 1001.0).rules == "old"
    assert cache.look("http://h", 1002.0).state is State.UNKNOWN
    cache.begin("http://h")
    cache.found("http://h", "new", 10, 1002.0)
    assert cache.look("http://h", 1003.0).rules == "new"


def test_the_one_asked_for_least_recently_is_forgotten_first() -> None:
    """By count; and by the size of the files."""
    cache: RobotsCache[str] = RobotsCache(LIMITS)
    for name in "abc":
        cache.begin(name)
        cache.found(name, name, 10, 0.0)
    cache.look("a", 1.0)
    cache.begin("d")
    cache.found("d", "d", 900, 1.0)
    states = {name: cache.look(name, 2.0).state for name in "abcd"}
    assert [name for name, state in states.items() if state is State.KNOWN] == ["a", "c", "d"]
    cache.begin("a")
    cache.found("a", "a", 200, 3.0)
    assert [name for name in "abcd" if cache.look(name, 4.0).state is State.KNOWN] == ["a"]


# --- a robots.txt is cut before it costs too much --------------------------------------------------------

AGENTS = [b"user-agent: a%d\n" % number for number in range(16_000)]


@given(st.binary(max_size=300))
def test_whatever_the_bytes_are_it_is_utf_8(body: bytes) -> None:
    """And parses."""
    Protego.parse(bounded(body).decode())


def test_an_ordinary_file_stays_as_it_is() -> None:
    """Also one in which every agent has a group of its own, with a sitemap between."""
    body = b"".join(b"user-agent: %d\nDisallow: /x\nsitemap: http://x/\n" % n for n in range(8_000))
    assert bounded(body).splitlines() == body.splitlines()


def test_no_more_than_500_kib_in_whole_lines_are_kept() -> None:
    """RFC 9309 wants at least so much to be parsed."""
    kept = bounded(b"# some words\n" * 100_000)
    assert LARGEST_BYTES - 20 < len(kept) <= LARGEST_BYTES
    assert kept.endswith(b"# some words")


def agents(part: int) -> list[bytes]:
    return AGENTS[: part * len(AGENTS) // 16]


@pytest.mark.nightly
@pytest.mark.parametrize(
    "made",
    [
        lambda n: b"".join(agents(n)) + b"allow:/a\n" * (1_200 * n),
        lambda n: b"\nsitemap:x\n".join(agents(n)) + b"allow:/a\n" * (430 * n),
        lambda n: b"\ngarbage\n".join(agents(n)) + b"allow:/a\n" * (430 * n),
        lambda n: b"\xc2\xa0".join(agents(n)) + b"allow:/a\n" * (430 * n),
        lambda n: "\u2028".join(line.decode().strip() for line in agents(n)).encode() + b"\nallow:/a\n" * (430 * n),
        lambda n: b"user-agent:*\n" + b"".join(b"allow:/*a%d*b\n" % m for m in range(1_900 * n)),
    ],
    ids=["agents", "sitemaps", "garbage", "blanks", "separators", "wildcards"],
)
def test_a_hostile_file_costs_no_more_than_its_length(made: Callable[[int], bytes]) -> None:
    """The second took four minutes to parse, and gigabytes."""

    def reading(part: int) -> Callable[[], object]:
        body = made(part)
        return lambda: Protego.parse(bounded(body).decode()).can_fetch("http://h/" + "a1" * 4_000, "me")

    assert_grows(reading, 1)
