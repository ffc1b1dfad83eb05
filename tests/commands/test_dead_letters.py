"""`scrapy dead-letters`: what is shown, and what is put back."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any
from unittest.mock import Mock

import pytest

from site_spider.adapters.local import log_file
from site_spider.contracts.seed_log import Headers, Partition
from site_spider.dead_letter_replay import Replay, letters, newest, put_back
from site_spider.seed.topics import CrawlTopics, partition_of
from site_spider.tasks.closing import TaskProducer
from site_spider.tasks.control_log import read_endings
from site_spider.tasks.ending import TaskEnding
from tests.commands.project import Project
from tests.tasks.test_pause_and_cancel import SendingLog

LETTERS = "seeds.dead-letters"
TOPICS = CrawlTopics.beside({"SITE_SEED_TOPIC": "seeds"})


def headers(origin: str = "seeds", **more: str) -> tuple[tuple[str, bytes], ...]:
    values = {
        "error": "url: missing",
        "origin_topic": origin,
        "origin_partition": "1",
        "origin_offset": "7",
        "failed_at": "2026-01-02T03:04:05.006+00:00",
    }
    return tuple((name, value.encode()) for name, value in (values | more).items())


def replay(project: Project) -> tuple[Replay, list[str]]:
    """One run, and what it complained about."""
    complaints: list[str] = []
    work = Replay(project.log, LETTERS, lambda _message, reason: complaints.append(reason), TOPICS)
    work.run()
    return work, complaints


def contents(project: Project, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    return sorted(((message.key, message.value) for message in project.log.read(topic)), key=repr)


def test_dead_letters_are_listed_with_reason_and_origin(project: Project) -> None:
    """One line each, of characters that a terminal only shows."""
    project.produce(LETTERS, (b"h.test", b'{"a": "\x1b[31m"}'), headers=headers())
    ran = project.scrapy("dead-letters")
    title, head, row = ran.stdout.splitlines()
    assert ran.returncode == 0
    assert title == f"Dead letters in {LETTERS}: 1"
    assert head.split() == ["ORIGIN", "FAILED_AT", "REPLAYED", "ERROR", "KEY", "VALUE"]
    assert row.split()[:3] == ["seeds/1/7", "2026-01-02T03:04:05.006+00:00", "no"]
    assert row.endswith('url: missing  h.test  {"a": "\\x1b[31m"}')


def test_json_has_the_whole_message(project: Project) -> None:
    """Values that are not UTF-8 come in base64, which a field of its own says."""
    project.produce(LETTERS, (b"k", "grün".encode()), (None, b"\xff\x00"), (b"t", None), headers=headers())
    ran = project.direct("dead_letters", "list", "--topic", "seeds", "--format", "json")
    found: dict[Any, Any] = {document["key"]: document for document in map(json.loads, ran.stdout.splitlines())}
    assert found["k"]["value"] == "grün"
    assert (found[None]["value"], found[None]["value_encoding"]) == ("/wA=", "base64")
    assert found["t"]["value"] is None
    assert found["k"]["headers"]["error"] == found["k"]["error"] == "url: missing"
    assert (found["k"]["origin_topic"], found["k"]["origin_offset"]) == ("seeds", "7")
    assert found["k"]["topic"] == LETTERS


def test_a_limit_is_said_when_something_is_left_out(project: Project) -> None:
    project.produce(LETTERS, *[(None, b"%d" % number) for number in range(3)], headers=headers())
    ran = project.direct("dead_letters", "--limit", "2")
    assert ran.stdout.splitlines()[0].endswith(": 2")
    assert ran.stderr == "scrapy dead-letters: there are more than these 2; --limit 0 shows all\n"


def test_a_replay_puts_the_original_bytes_back_once(project: Project) -> None:
    """The command says how many, in batches; a second one finds nothing, and the list marks them."""
    sent = [(b"k", b"\xff not JSON"), (None, b"v"), (b"t", None), *((b"%d" % n, b"%d" % n) for n in range(1_200))]
    project.produce(LETTERS, *sent, headers=headers("seeds"))
    ran = project.scrapy("dead-letters", "replay")
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "replayed 1203\n", "")
    assert contents(project, "seeds") == sorted(sent, key=repr)
    assert project.scrapy("dead-letters", "replay").stdout == "replayed 0\n"
    assert project.scrapy("dead-letters", "--limit", "0").stdout.count(" yes ") == 1_203


def test_what_cannot_be_put_back_is_said_and_left(project: Project) -> None:
    """Without an origin, from a topic for which no seeds are, or with the beginning of its message only."""
    project.produce(LETTERS, (None, b"foreign"))
    project.produce(LETTERS, (None, b"cut"), headers=headers(truncated_from_bytes="9"))
    project.produce(LETTERS, (b"t", b'{"task_id": "t", "state": "cancelled"}'), headers=headers("seeds.tasks"))
    work, complaints = replay(project)
    assert (work.replayed, work.skipped) == (0, 3)
    assert "its header origin_topic is 'seeds.tasks', which is no seed topic of this crawl" in complaints
    assert not project.log.partitions("seeds.tasks")
    assert sum(done.below for done in put_back(project.log, LETTERS).values()) == 2
    replayed = {letter.message.value: letter.replayed for letter in letters(project.log, LETTERS)}
    assert not replayed[b"foreign"]
    assert not replayed[b"cut"]
    assert not next(letter.replayed for letter in newest(project.log, LETTERS, 10) if letter.message.value == b"cut")


def test_what_is_set_aside_again_waits_for_the_next_replay(project: Project) -> None:
    """A crawl that runs sends back what is still wrong, faster than a replay could end."""
    project.produce(LETTERS, *[(b"h.test", b"wrong %d" % number) for number in range(3)], headers=headers())
    left = [*range(40)]

    def send_and_set_aside(send: Any, topic: str, key: bytes | None, value: bytes | None, said: Headers) -> Any:
        if left:
            send(LETTERS, key, value, headers(origin_offset=str(left.pop()))).result(300)
        return send(topic, key, value, said)

    for _ in range(2):
        work = Replay(SendingLog(project.data, send_and_set_aside), LETTERS, lambda message, reason: None, TOPICS)
        work.run()
        assert work.replayed == 3
    assert len(contents(project, "seeds")) == 6
    assert [at.below for at in put_back(project.log, LETTERS).values() if at.below] == [6]


def test_what_was_written_twice_is_one_dead_letter(project: Project) -> None:
    """Listed once and put back once, also when the second comes after the replay of the first."""
    project.produce(LETTERS, (b"h.test", b"wrong"), headers=headers("seeds"))
    project.produce(LETTERS, (b"h.test", b"other"), headers=headers("seeds", error="again"))
    project.produce(LETTERS, (b"h.test", b"wrong"), headers=headers("seeds", failed_at="later"))
    assert project.direct("dead_letters").stdout.startswith(f"Dead letters in {LETTERS}: 2\n")
    assert replay(project)[0].replayed == 2
    project.produce(LETTERS, (b"h.test", b"wrong"), headers=headers("seeds", failed_at="later still"))
    assert [letter.replayed for letter in letters(project.log, LETTERS)] == [True] * 2
    assert replay(project)[0].replayed == 0
    assert len(contents(project, "seeds")) == 2


def test_letters_of_another_crawl_go_on_with_their_tasks_there(project: Project) -> None:
    topics, seed = CrawlTopics.of({"SITE_SEED_TOPIC": "more"}), b'{"url": "http://h/", "meta": {"task_id": "t"}}'
    with closing(project.log.producer()) as producer:
        TaskProducer(project.log, producer, topics, "t").begin()
    project.produce("more.dead-letters", (b"h", seed), headers=headers("more"))
    assert project.direct("dead_letters", "replay", "--topic", "more").stdout == "replayed 1\n"
    assert [*(read_endings(project.log, topics).get("t") or TaskEnding()).highs.values()] == [1]


def test_letters_of_this_crawl_in_a_topic_of_another_name_come_back(project: Project) -> None:
    """As one that SITE_DEAD_LETTER_TOPIC named before, for two crawls at once: no seed topic has that name."""
    project.produce("shared.dead-letters", (b"h.test", b"wrong"), headers=headers("seeds"))
    ran = project.direct("dead_letters", "replay", "--topic", "shared.dead-letters")
    assert (ran.returncode, ran.stdout) == (0, "replayed 1\n")


def test_two_crawls_may_share_a_topic_of_dead_letters(project: Project) -> None:
    """What one of them passes over waits for the replay of the other, wherever it stands."""
    for number, seeds in enumerate("abbabaab"):
        said = headers(seeds, origin_offset=str(number))
        project.produce("shared", (b"one partition", b"of %b" % seeds.encode()), headers=said)
    for seeds in "abab":
        topics = CrawlTopics.of({"SITE_SEED_TOPIC": seeds, "SITE_DEAD_LETTER_TOPIC": "shared"})
        Replay(project.log, "shared", lambda message, reason: None, topics).run()
    assert contents(project, "a") == [(b"one partition", b"of a")] * 4
    assert contents(project, "b") == [(b"one partition", b"of b")] * 4
    assert all(letter.replayed for letter in letters(project.log, "shared"))
    assert sum(done.below for done in put_back(project.log, "shared").values()) == 8


def test_a_replay_waits_for_partitions_of_one_that_died_also_where_another_crawl_has_letters(
    project: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would end well, with dead letters of its own left."""
    project.produce(LETTERS, (b"first", b"own"), headers=headers())  # makes the topic
    replay(project)
    owner = Mock(**{"revoked.return_value": {}})
    dying, living = (project.log.consumer((LETTERS,), f"{LETTERS}.replay", owner) for _ in range(2))
    while not living._offsets:
        dying.poll(0.3, 1)
        living.poll(0.3, 1)
    assert dying._offsets
    living.close()
    for number in range(20):
        key = b"%d" % number
        its = Partition(LETTERS, partition_of(key, project.log.partitions(LETTERS)))
        origin = "seeds" if its in dying._offsets else "foreign"
        project.produce(LETTERS, (key, origin.encode()), headers=headers(origin, origin_offset=str(number)))
    monkeypatch.setattr(log_file, "STALLED_SECONDS", 2.0)
    work, _ = replay(project)
    sent = contents(project, "seeds")
    assert work.replayed == len(sent) - 1 > 0
    assert {value for _, value in sent} == {b"own", b"seeds"}
    assert {letter.replayed for letter in letters(project.log, LETTERS) if letter.message.value == b"seeds"} == {True}
    dying.close()


def test_messages_of_a_topic_that_was_made_anew_are_others(project: Project) -> None:
    """They have the same offsets, and came at another time."""
    for moment in ("1700000000000", "1800000000000"):
        at = headers("seeds", origin_timestamp=moment)
        project.produce(LETTERS, (b"h.test", b"wrong"), headers=at)
    assert replay(project)[0].replayed == 2


@pytest.mark.parametrize("verb", ["list", "replay"])
@pytest.mark.parametrize("topic", ["TYPO", "TYPO.dead-letters"])
def test_a_topic_that_is_not_found_is_said(project: Project, verb: str, topic: str) -> None:
    """Exit code 1: an empty list would say that nothing was set aside."""
    project.produce("seeds", (None, b"{}"))
    ran = project.scrapy("dead-letters", verb, "--topic", topic)
    assert ran.returncode == 1
    assert ran.stdout == ""
    assert f"--topic is '{topic}', but neither TYPO nor TYPO.dead-letters exists" in ran.stderr


@pytest.mark.parametrize(
    "words", [(), ("replay",), *(("list", "--topic", topic) for topic in ("more", "more.dead-letters", "seeds"))]
)
def test_a_seed_topic_without_dead_letters_is_found(project: Project, words: tuple[str, ...]) -> None:
    """The topic is made with its first dead letter; the one of the settings may not exist at all yet."""
    project.produce("more", (None, b"{}"))
    ran = project.direct("dead_letters", *words)
    topic = "more" if "--topic" in words and words[2] != "seeds" else "seeds"
    assert ran.returncode == 0
    assert ran.stdout == ("replayed 0\n" if "replay" in words else f"Dead letters in {topic}.dead-letters: 0\n")
