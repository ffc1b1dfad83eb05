"""Commits that nobody answers, without a server: what begins, and what is said."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import pytest

from site_spider.contracts.seed_log import Partition, Position
from site_spider.errors import LogSilent, LogUnavailable
from site_spider.ledger.completion import Completion
from site_spider.ledger.ledger import Ledger
from site_spider.results.commits import Member, OffsetCommits

P = Partition("seeds", 0)
Answered = Callable[[LogUnavailable | None], None]


class SilentConsumer:
    """Answers when the test says so."""

    session_seconds = 0.5

    def __init__(self) -> None:
        self.asked: list[tuple[dict[Partition, Position], Answered]] = []

    def begin_commit(self, positions: Mapping[Partition, Position], answered: Answered) -> None:
        self.asked.append((dict(positions), answered))


class Log:
    """Makes one consumer."""

    def __init__(self, consumer: SilentConsumer) -> None:
        self._consumer = consumer

    def consumer(self, *_arguments: object) -> SilentConsumer:
        return self._consumer


class Scene:
    """A process that owns one partition and wants to commit."""

    def __init__(self) -> None:
        self.consumer = SilentConsumer()
        self.completion = Completion(Ledger("me"))
        self.commits = OffsetCommits(
            self.completion, None, Member("seeds", "group"), lambda call, *arguments: call(*arguments)
        )  # type: ignore[arg-type]
        self.commits.join(Log(self.consumer), None)  # type: ignore[arg-type]
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
def scene() -> Scene:
    return Scene()


def test_one_commit_is_under_way_and_nothing_waits_for_it(scene: Scene) -> None:
    scene.want(7)
    scene.want(9)
    assert len(scene.consumer.asked) == 1
    assert not scene.commits.is_cut_off
    scene.consumer.asked[0][1](None)
    scene.look()
    assert [positions[P].offset for positions, _ in scene.consumer.asked] == [7, 9]


def test_silence_for_most_of_a_session_cuts_off_and_an_answer_ends_it(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    scene.want(7)
    scene.wait()
    scene.look()
    assert "has not answered a commit" in caplog.text
    scene.consumer.asked[0][1](LogUnavailable("the group rebalances"))  # a server's own word
    assert not scene.commits.is_cut_off
    assert "answers again" in caplog.text


def test_the_clients_own_error_is_no_answer(scene: Scene) -> None:
    scene.want(7)
    scene.wait()
    scene.consumer.asked[0][1](LogSilent("timed out"))
    assert scene.commits.is_cut_off
    scene.look()
    assert len(scene.consumer.asked) == 2


def test_partitions_that_are_lost_in_a_silence_leave_it_on_until_others_come(scene: Scene) -> None:
    """And an answer that comes after the loss says nothing of what is assigned then."""
    scene.want(7)
    scene.wait()
    scene.completion.lost([P])
    scene.commits.forget([P])
    scene.commits.look(scene.consumer, set())  # type: ignore[arg-type]
    assert scene.commits.is_cut_off
    scene.consumer.asked[0][1](None)
    assert scene.commits.is_cut_off
    scene.completion.assigned({P: Position(5)})
    scene.commits.tick()
    scene.look()
    if len(scene.consumer.asked) == 2:
        scene.consumer.asked[1][1](None)
    assert not scene.commits.is_cut_off


def test_what_waits_for_a_commit_begins_once(scene: Scene) -> None:
    """Though its first commit is answered after partitions have left, and again after the next."""
    begun: list[Any] = []
    scene.completion.ledger.reached(P, 7)
    scene.commits.commit_first(scene.completion.ledger.positions(), lambda: begun.append(1))
    scene.look()
    scene.commits.forget([Partition("seeds", 9)])
    scene.look()
    first, second = (answered for _, answered in scene.consumer.asked)
    first(None)
    assert begun == []
    second(None)
    assert begun == [1]
