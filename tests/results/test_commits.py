"""What the intake commits, and of which assignment."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import GroupRebalances, LogSilent, LogUnavailable
from site_spider.ledger.completion import Completion, SeedListener
from site_spider.ledger.ledger import Ledger, Outcome
from site_spider.results.commits import Member, OffsetCommits

P, Q = Partition("seeds", 0), Partition("seeds", 1)


class Scene:
    """A ledger on the loop, and the intake's thread, whose calls reach the loop when the test lets them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("site_spider.results.commits._COMMIT_SECONDS", 0.0)
        self.ledger = Ledger()
        self.told: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        tell = lambda call, *arguments: self.told.append((call, arguments))  # noqa: E731
        completion = Completion(self.ledger, SeedListener())
        self.commits = OffsetCommits(completion, None, Member(("seeds",), "group"), tell)  # type: ignore[arg-type]
        self.mine: set[Partition] = set()
        self.committed: list[tuple[Partition, int]] = []
        self.is_away = False
        self.error: LogUnavailable = LogUnavailable("away")
        self.answers: list[Callable[[], None]] = []

    def begin_commit(
        self, positions: Mapping[Partition, Position], answered: Callable[[LogUnavailable | None], None]
    ) -> None:
        if not self.is_away:
            self.committed += [(partition, position.offset) for partition, position in positions.items()]
        self.answers.append(partial(answered, self.error if self.is_away else None))

    def assign(self, partition: Partition, offset: int) -> None:
        """The group gives a partition, and the loop hears of it."""
        self.mine.add(partition)
        self.told.append((self.ledger.assign, (partition, Position(offset))))

    def leave(self, partition: Partition) -> None:
        """The group takes it; the loop hears of it later."""
        self.mine.discard(partition)
        self.told.append((self.ledger.revoke, (partition,)))
        self.commits.forget([partition])

    def do(self, partition: Partition, offset: int) -> None:
        entry = self.ledger.take(partition, offset)
        assert entry is not None
        self.ledger.decide(entry, Outcome.RESULT)
        self.ledger.release(entry)

    def reach_the_loop(self) -> None:
        told, self.told = self.told, []
        for call, arguments in told:
            call(*arguments)

    def look(self) -> list[tuple[Partition, int]]:
        self.committed = []
        self.commits.look(self, self.mine)  # type: ignore[arg-type]
        answers, self.answers = self.answers, []
        for answer in answers:  # as in a later poll
            answer()
        return self.committed


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_a_first_commit_of_an_earlier_assignment_commits_nothing_of_it(scene: Scene) -> None:
    """What waits for it is told all the same, and finds its seeds fenced."""
    done: list[str] = []
    scene.assign(P, 0)
    scene.reach_the_loop()
    scene.do(P, 0)
    scene.is_away = True
    scene.commits.commit_first(scene.ledger.positions([P]), lambda: done.append("then"))
    assert scene.look() == []
    assert scene.commits.is_awaited
    scene.is_away = False
    scene.leave(P)
    scene.assign(P, 7)
    assert scene.look() == []
    scene.reach_the_loop()
    scene.commits.tick()
    assert set(scene.look()) <= {(P, 7)}
    scene.reach_the_loop()
    assert done == ["then"]


def test_partitions_that_stay_are_committed_on_and_one_that_is_back_anew(scene: Scene) -> None:
    """Another process may have gone further meanwhile; and the loop is late to hear of all that."""
    scene.assign(P, 0)
    scene.assign(Q, 0)
    scene.reach_the_loop()
    scene.do(P, 0)
    scene.commits.tick()
    assert scene.look() == [(P, 1), (Q, 0)]
    scene.do(Q, 0)
    scene.leave(P)
    scene.commits.tick()  # the loop knows no better yet
    assert scene.look() == []
    scene.reach_the_loop()
    assert scene.look() == [(Q, 1)]
    scene.assign(P, 1)
    assert scene.look() == []
    scene.reach_the_loop()
    scene.commits.tick()
    assert scene.look() == [(P, 1)]  # as it was committed before it left, which says nothing
    assert scene.look() == []


def test_what_is_committed_first_goes_at_once_and_is_told_once(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing has changed since; and others that wait go with it."""
    done: list[str] = []
    monkeypatch.setattr("site_spider.results.commits._COMMIT_SECONDS", 300.0)
    scene.assign(P, 0)
    scene.assign(Q, 0)
    scene.reach_the_loop()
    for _ in range(2):
        for partition in (P, Q):
            positions = scene.ledger.positions([partition])
            scene.commits.commit_first(positions, partial(done.append, str(partition)))
        assert scene.look() == [(P, 0), (Q, 0)]
        scene.reach_the_loop()
    assert done == [str(P), str(Q)] * 2
    assert scene.look() == []
    scene.leave(P)
    scene.leave(Q)
    scene.reach_the_loop()
    scene.commits.commit_first(positions, lambda: done.append("left"))
    assert scene.look() == []
    scene.reach_the_loop()
    assert done[4:] == ["left"]


@pytest.mark.parametrize(
    ("error", "patience", "warnings"),
    [
        (GroupRebalances("the group is rebalancing"), 30.0, 0),
        (GroupRebalances("the group is rebalancing"), 0.0, 1),
        (LogUnavailable("not authorized"), 30.0, 1),
    ],
)
def test_a_rebalance_is_no_warning_unless_it_does_not_end(
    scene: Scene,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: LogUnavailable,
    patience: float,
    warnings: int,
) -> None:
    """Every start of a process refuses some commits of the others."""
    monkeypatch.setattr("site_spider.results.commits._REBALANCE_SECONDS", patience)
    scene.assign(P, 0)
    scene.reach_the_loop()
    scene.do(P, 0)
    scene.commits.tick()
    scene.is_away, scene.error = True, error
    for _ in range(3):
        scene.look()
    scene.is_away = False
    assert [scene.look(), scene.look()] == [[(P, 1)], []]
    assert [record.levelname for record in caplog.records].count("WARNING") == warnings


# --- Commits that nobody answers, without a server: what begins, and what is said


Answered = Callable[[LogUnavailable | None], None]


class Silence:
    """A process that owns one partition and wants to commit."""

    def __init__(self) -> None:
        self.asked: list[tuple[dict[Partition, Position], Answered]] = []
        ask = lambda positions, answered: self.asked.append((dict(positions), answered))  # noqa: E731
        self.consumer = Mock(session_seconds=0.5, begin_commit=ask)
        self.completion = Completion(Ledger("me"))
        self.commits = OffsetCommits(
            self.completion, None, Member(("seeds",), "group"), lambda call, *arguments: call(*arguments)
        )  # type: ignore[arg-type]
        self.commits.join(Mock(consumer=lambda *_what, **_how: self.consumer), None)  # type: ignore[arg-type]
        self.completion.assigned({P: Position(5)})

    def want(self, offset: int) -> None:
        self.completion.ledger.reached(P, offset)
        self.commits.tick()
        self.look()

    def look(self, *mine: Partition) -> None:
        self.commits._commit_at = 0.0  # it is time
        self.commits.look(self.consumer, {*(mine or (P,))})  # type: ignore[arg-type]

    def wait(self) -> None:
        deadline = time.monotonic() + 300
        while not self.commits.is_cut_off:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.fixture
def silence() -> Silence:
    return Silence()


def test_one_commit_is_under_way_at_a_time(silence: Silence) -> None:
    silence.want(7)
    silence.want(9)
    assert len(silence.asked) == 1
    silence.asked[0][1](None)
    silence.look()
    assert [positions[P].offset for positions, _ in silence.asked] == [7, 9]


def test_silence_for_most_of_a_session_cuts_off_and_an_answer_ends_it(
    silence: Silence, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    silence.want(7)
    silence.wait()
    silence.look()
    assert "has not answered a commit" in caplog.text
    silence.asked[0][1](LogUnavailable("the group rebalances"))  # a server's own word
    assert not silence.commits.is_cut_off
    assert "answers again" in caplog.text


def test_the_clients_own_error_is_no_answer(silence: Silence) -> None:
    silence.want(7)
    silence.wait()
    silence.asked[0][1](LogSilent("timed out"))
    assert silence.commits.is_cut_off
    silence.look()
    assert len(silence.asked) == 2


def test_partitions_that_are_lost_in_a_silence_leave_it_on_until_others_come(silence: Silence) -> None:
    """And an answer that comes after the loss says nothing of what is assigned then."""
    silence.want(7)
    silence.wait()
    silence.completion.lost([P])
    silence.commits.forget([P])
    silence.commits.look(silence.consumer, set())  # type: ignore[arg-type]
    assert silence.commits.is_cut_off
    silence.asked[0][1](None)
    assert silence.commits.is_cut_off
    silence.completion.assigned({P: Position(5)})
    silence.commits.tick()
    silence.look()
    if len(silence.asked) == 2:
        silence.asked[1][1](None)
    assert not silence.commits.is_cut_off


def test_what_waits_for_a_commit_begins_once(silence: Silence) -> None:
    """Though its first commit is answered after partitions have left, and again after the next."""
    begun: list[Any] = []
    silence.completion.ledger.reached(P, 7)
    silence.commits.commit_first(silence.completion.ledger.positions(), lambda: begun.append(1))
    silence.look()
    silence.commits.forget([Partition("seeds", 9)])
    silence.look()
    first, second = (answered for _, answered in silence.asked)
    first(None)
    assert begun == []
    second(None)
    assert begun == [1]
