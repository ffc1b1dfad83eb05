"""Dead letters that somebody chose, over both seed logs."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.contracts.seed_log import Consumer, Message, Partition, Position
from site_spider.dead_letter_replay import Letter, PutBack, Replay, newest
from site_spider.errors import LogUnavailable
from site_spider.seed.topics import CrawlTopics
from tests.contracts.seed_logs import PATIENCE_SECONDS, Case, case, kafka_producer

__all__ = ["case", "kafka_producer"]


@pytest.fixture
def letters(case: Case) -> Case:
    """Six of one topic, which go back to the one that it is named after."""
    case.make_topic(topic(case), 2)
    case.make_topic(origin(case), 1)
    for number in range(6):
        headers = (("origin_topic", origin(case).encode()), ("error", b"url: missing"))
        case.producer.send(topic(case), b"key-%d" % number, b"value-%d" % number, headers).result(PATIENCE_SECONDS)
    return case


def topic(case: Case) -> str:
    return f"{case.topic}.dead-letters"


def origin(case: Case) -> str:
    return case.topic


def put_back(case: Case) -> list[bytes]:
    return sorted(message.value or b"" for message in case.log.read(origin(case)))


def chosen(found: list[Letter]) -> dict[Partition, frozenset[int]]:
    places: dict[Partition, set[int]] = {}
    for letter in found:
        places.setdefault(letter.message.partition, set()).add(letter.message.offset)
    return {partition: frozenset(offsets) for partition, offsets in places.items()}


def never(message: Message, reason: str) -> None:
    raise AssertionError(json.dumps([message.offset, reason]))


def replay_of(case: Case) -> Replay:
    topics = CrawlTopics.beside({"SITE_SEED_TOPIC": origin(case)})
    return Replay(case.log, topic(case), never, topics)


def run(case: Case, found: list[Letter]) -> int:
    replay = replay_of(case)
    replay.run(chosen(found))
    return replay.replayed


def test_the_chosen_ones_go_back_once_and_the_others_with_the_next_replay(letters: Case) -> None:
    """Both ways remember it together."""
    some = newest(letters.log, topic(letters), 100)[1:4:2]
    assert run(letters, some) == 2
    assert put_back(letters) == sorted(letter.message.value or b"" for letter in some)
    assert run(letters, some) == 0, "they were put back twice"
    replayed = {letter.message.value for letter in newest(letters.log, topic(letters), 100) if letter.replayed}
    assert replayed == set(put_back(letters))
    rest = replay_of(letters)
    rest.run()
    assert rest.replayed == 4
    assert put_back(letters) == [b"value-%d" % number for number in range(6)]
    assert run(letters, newest(letters.log, topic(letters), 100)) == 0


def test_a_commit_that_fails_is_tried_again_and_remembers_no_more(
    letters: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The member reads on meanwhile, to the end; the others wait all the same."""
    make, fails = letters.log.consumer, iter([True] * 8)

    def failing(*arguments: Any) -> Consumer:
        made = make(*arguments)
        commit = made.commit

        def fail(positions: Mapping[Partition, Position]) -> None:
            if next(fails, False):
                raise LogUnavailable("a rebalance")
            commit(positions)

        monkeypatch.setattr(made, "commit", fail)
        return made

    monkeypatch.setattr(letters.log, "consumer", failing)
    assert run(letters, newest(letters.log, topic(letters), 100)[:1]) == 1
    rest = replay_of(letters)
    rest.run()
    assert rest.replayed == 5


def test_of_what_was_written_twice_either_is_chosen_and_goes_back_once(case: Case) -> None:
    """The console shows it once."""
    case.make_topic(topic(case), 2)
    case.make_topic(origin(case), 1)
    place = (("origin_topic", origin(case).encode()), ("origin_partition", b"0"), ("origin_offset", b"7"))
    places = [case.producer.send(topic(case), b"k", b"v", place).result(PATIENCE_SECONDS) for _ in range(3)]
    assert len(newest(case.log, topic(case), 100)) == 1
    for partition, offset, *_ in reversed(places):
        replay_of(case).run({partition: frozenset({offset})})
    assert put_back(case) == [b"v"]
    assert [letter.replayed for letter in newest(case.log, topic(case), 100)] == [True]
    rest = replay_of(case)
    rest.run()
    assert rest.replayed == 0


def test_what_does_not_exist_is_not_put_back(letters: Case) -> None:
    places = {Partition(topic(letters), 0): frozenset({10_000}), Partition(topic(letters), 99): frozenset({1})}
    replay = replay_of(letters)
    replay.run(places)
    assert replay.replayed == 0
    assert letters.log.progress(topic(letters), "any")


def test_only_the_newest_are_read(letters: Case) -> None:
    assert len(newest(letters.log, topic(letters), 3)) == 3
    assert newest(letters.log, "no-such-topic", 3) == []


def test_of_the_newest_only_the_beginning_is_held(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also while they are read: their topic may hold more than the memory."""
    log = LocalSeedLog(tmp_path)
    log.make_topic("dead", 1, compacted=False)

    def read(*_arguments: object) -> Iterator[Message]:
        for offset in range(50):
            raw = b"%d" % offset + bytes(400_000)
            yield Message(Partition("dead", 0), offset, raw, raw + b"/%d/" % offset, (("error", raw),), offset)

    monkeypatch.setattr(log, "read", read)
    tracemalloc.start()
    found = newest(log, "dead", 40)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 10_000_000
    assert [letter.message.offset for letter in found] == list(range(49, 9, -1))
    assert (found[0].headers["error"][:2], (found[0].message.value or b"")[:2]) == ("49", b"49")
    assert [letter.message.offset for letter in newest(log, "dead", 40, b"/7/")] == [7], "its end is not looked at"


# --- what is remembered of replays ----------------------------------------------------------------


OFFSETS = st.sets(st.integers(0, 60))


@given(below=st.integers(0, 30), chosen=OFFSETS, more=OFFSETS, up_to=st.integers(0, 60))
def test_it_remembers_exactly_what_was_put_back(below: int, chosen: set[int], more: set[int], up_to: int) -> None:
    """Through commits, too."""
    done = PutBack(below).with_offsets(chosen)
    done = PutBack.of(done.position()).with_offsets(more).up_to(up_to)
    done = PutBack.of(done.position())
    expected = chosen | more | set(range(below)) | set(range(up_to))
    assert {offset for offset in range(100) if offset in done} == expected


def test_nothing_was_put_back_without_a_commit() -> None:
    assert 0 not in PutBack.of(None)
    assert "0" not in PutBack(5)


def test_a_damaged_commit_forgets_what_was_chosen_only() -> None:
    done = PutBack.of(Position(3, "no metadata of ours"))
    assert [offset in done for offset in (2, 3)] == [True, False]
