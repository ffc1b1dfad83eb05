"""Messages that Kafka deletes before the group has read them, those that wait in a member; names of members."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from site_spider.adapters.kafka.consumer import FEW_MESSAGES, MOST_BYTES, MOST_MESSAGES, Gaps, KafkaPrefetch
from site_spider.adapters.kafka.member_name import MemberSlot, default_folder
from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.observe.progress import of_partition, total
from tests.contracts.seed_logs import Case, poll_until
from tests.in_process.engine import crawl

P = Partition("t", 0)


class Told(list[tuple[Partition, int, int]]):
    """What the listener hears, and a log that begins at `start`."""

    start: int | None = 0
    asked = 0

    def start_of(self, _partition: Partition) -> int | None:
        self.asked += 1
        return self.start

    def tell(self, *what: object) -> None:
        self.append(what)  # type: ignore[arg-type]


@pytest.fixture
def told() -> Told:
    return Told()


@pytest.fixture
def gaps(told: Told) -> Gaps:
    return Gaps(told.start_of, told.tell)


def test_gaps_of_compaction_and_of_transactions_are_none(gaps: Gaps, told: Told) -> None:
    gaps.saw(P, 8, 9, 3)
    gaps.look(0.0)
    for offset in range(10, 100, 2):
        gaps.saw(P, offset, offset + 1, 3)
        gaps.look(1.0)
    assert told == []
    assert told.asked == 1  # not at each of them


def test_nothing_is_missing_where_nothing_was_committed(gaps: Gaps, told: Told) -> None:
    told.start = 8
    gaps.saw(P, 8, 9, None)
    gaps.drop([P])
    gaps.saw(P, 8, 9, 8)
    gaps.look(0.0)
    assert told == []


def test_servers_that_do_not_answer_are_asked_again(gaps: Gaps, told: Told) -> None:
    told.start = None
    gaps.saw(P, 8, 9, 3)
    gaps.look(0.0)
    told.start = 6
    gaps.look(1.0)
    assert told == []
    gaps.look(11.0)
    assert told == [(P, 3, 6)]


def delete_up_to(brokers: str, topic: str, offset: int) -> None:
    admin = AdminClient({"bootstrap.servers": brokers})
    for future in admin.delete_records([TopicPartition(topic, 0, offset)]).values():
        future.result(300)


@pytest.mark.servers
@pytest.mark.usefixtures("one_partition")
@pytest.mark.parametrize("deleted_up_to", [8, 10])
def test_a_member_hears_of_what_was_deleted(case: Case, kafka_brokers: str, deleted_up_to: int) -> None:
    case.produce(10)
    first = case.member()
    first.own(1)
    at = Partition(case.topic, 0)
    first.consumer.commit({at: Position(3)})
    case.leave(first)
    delete_up_to(kafka_brokers, case.topic, deleted_up_to)
    progress = total(map(of_partition, case.log.progress(case.topic, case.group)))
    assert (progress.deleted, progress.lag) == (deleted_up_to - 3, 10 - deleted_up_to)
    second = case.member()
    poll_until([second], lambda: second.listener.gone and len(second.taken) == 10 - deleted_up_to, "the gap")
    assert [message.offset for message in second.taken] == list(range(deleted_up_to, 10))
    assert second.listener.gone == [(at, 3, deleted_up_to)]


@pytest.mark.servers
@pytest.mark.usefixtures("one_partition")
def test_a_crawl_counts_seeds_that_were_deleted_unread(
    case: Case, kafka_brokers: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = {
        "SITE_KAFKA_BROKERS": kafka_brokers, "SITE_SEED_TOPIC": case.topic, "SITE_CONSUMER_GROUP": case.group,
    }  # fmt: skip
    seeds = [{"url": f"http://h.test/{number}"} for number in range(10)]
    assert crawl(tmp_path, seeds[:3], **settings).seeds["deleted_unread"] == 0
    case.send([(None, b'{"url": "http://h.test/x"}')] * 10)
    delete_up_to(kafka_brokers, case.topic, 9)
    found = crawl(tmp_path, [], **settings)
    assert found.seeds["deleted_unread"] == 6
    assert found.seeds["completed"] == 4
    assert found.exit_code == 0
    assert "6 seeds were deleted unread, from offset 3 to before 9" in caplog.text


# --- messages between the client and whoever polls ------------------------------------------------

A, B = Partition("seeds", 0), Partition("seeds", 1)


class Client:
    """What the prefetch does to the client."""

    def __init__(self) -> None:
        self.stopped: set[Partition] = set()
        self.prefetch = KafkaPrefetch(self._stop, self.stopped.remove)

    def _stop(self, partition: Partition) -> None:
        assert partition not in self.stopped
        self.stopped.add(partition)

    def give(self, partition: Partition, offsets: range, value: bytes = b"v") -> None:
        for offset in offsets:
            self.prefetch.put(Message(partition, offset, b"k", value))

    def take(self, limit: int = 1_000_000) -> list[tuple[int, int]]:
        return [(message.partition.number, message.offset) for message in self.prefetch.take(limit)]


@pytest.fixture
def client() -> Client:
    return Client()


def test_messages_come_in_order_up_to_the_limit_and_partitions_take_turns(client: Client) -> None:
    client.give(A, range(3))
    client.give(B, range(2))
    assert A in client.prefetch
    assert client.take(1) == [(0, 0)]
    assert client.take(1) == [(1, 0)]
    assert client.take(2) == [(0, 1), (0, 2)]
    assert A not in client.prefetch
    assert client.take() == [(1, 1)]
    assert client.take() == []


def test_a_paused_partition_gives_nothing_until_it_is_resumed(client: Client) -> None:
    client.give(A, range(2))
    client.give(B, range(1))
    client.prefetch.pause([A])
    assert client.take() == [(1, 0)]
    client.give(A, range(2, 3))
    assert client.take() == []
    client.prefetch.pause([])
    assert client.take() == [(0, 0), (0, 1), (0, 2)]


def test_what_came_in_an_earlier_assignment_is_dropped(client: Client) -> None:
    client.give(A, range(2))
    client.prefetch.pause([A])
    client.prefetch.drop([A, B])
    assert A not in client.prefetch
    client.give(A, range(1))
    assert client.take() == [(0, 0)]


def test_the_client_stops_where_much_waits_and_goes_on_where_little_is_left(client: Client) -> None:
    client.prefetch.pause([A])
    client.give(A, range(MOST_MESSAGES))
    client.give(B, range(1))
    assert client.take() == [(1, 0)]
    assert client.stopped == {A}
    client.prefetch.pause([])
    assert len(client.take(MOST_MESSAGES - FEW_MESSAGES)) == MOST_MESSAGES - FEW_MESSAGES
    assert client.stopped == {A}
    client.take(1)
    assert client.stopped == set()


def test_the_client_stops_when_many_bytes_wait(client: Client) -> None:
    client.prefetch.pause([A])
    client.give(A, range(2), b"v" * (MOST_BYTES // 2))
    assert client.take() == []
    assert client.stopped == {A}
    client.prefetch.pause([])
    assert client.take(1) == [(0, 0)]
    assert client.stopped == set()


def test_a_new_assignment_finds_the_client_going_on(client: Client) -> None:
    client.prefetch.pause([A])
    client.give(A, range(MOST_MESSAGES))
    client.take()
    client.prefetch.drop([A])
    client.stopped.clear()
    client.give(A, range(MOST_MESSAGES))
    client.prefetch.pause([A])
    client.take()
    assert client.stopped == {A}


# --- names of group members: kept over restarts, never shared by two that live --------------------

CLAIM = """
import sys
from pathlib import Path
from site_spider.adapters.kafka.member_name import MemberSlot
slot = MemberSlot.claim("group", Path(sys.argv[1]))
print(slot.instance_id, flush=True)
input()
"""


@pytest.fixture
def claim() -> Iterator[Callable[..., MemberSlot]]:
    """Takes slots that are free again at the end."""
    taken: list[MemberSlot] = []

    def make(*where: object) -> MemberSlot:
        taken.append(MemberSlot.claim(*where))  # type: ignore[arg-type]
        return taken[-1]

    yield make
    for slot in taken:
        slot.release()


def claimed_elsewhere(folder: Path) -> tuple[subprocess.Popen[str], str]:
    process = subprocess.Popen(
        [sys.executable, "-c", CLAIM, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str], number: int) -> None:
    os.kill(process.pid, number)
    process.communicate()


def number_of(slot: MemberSlot) -> int:
    return int(slot.instance_id.rpartition("-")[2])


def test_the_lowest_free_slot_is_taken(claim: Callable[..., MemberSlot], tmp_path: Path) -> None:
    first, second, third = (claim("group", tmp_path) for _ in range(3))
    assert [number_of(slot) for slot in (first, second, third)] == [0, 1, 2]
    second.release()
    second.release()  # harmless to repeat
    again = claim("group", tmp_path)
    assert again.instance_id == second.instance_id


def test_two_live_processes_never_share_a_name(tmp_path: Path) -> None:
    first, first_name = claimed_elsewhere(tmp_path)
    second, second_name = claimed_elsewhere(tmp_path)
    assert first_name != second_name
    end(first, signal.SIGKILL)
    third, third_name = claimed_elsewhere(tmp_path)
    assert third_name == first_name
    end(second, signal.SIGTERM)
    end(third, signal.SIGTERM)


def test_a_child_process_does_not_keep_the_slot(tmp_path: Path) -> None:
    slot = MemberSlot.claim("group", tmp_path)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        slot.release()
        again = MemberSlot.claim("group", tmp_path)
        assert again.instance_id == slot.instance_id
        again.release()
        child.communicate(b"\n")


def test_groups_count_their_slots_apart(claim: Callable[..., MemberSlot], tmp_path: Path) -> None:
    slots = [claim(group, tmp_path) for group in ("a/b", "a:b", "a_b", "../../a", "x" * 300, "é")]
    assert {number_of(slot) for slot in slots} == {0}
    assert len(list(tmp_path.glob("*.lock"))) == len(slots)


def test_the_name_tells_the_host_and_differs_between_folders(
    claim: Callable[..., MemberSlot], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folders are counted apart, so the name must tell them apart, and so are containers of one machine."""
    slots = [claim("group", tmp_path / name) for name in ("one", "two")]
    assert slots[0].instance_id != slots[1].instance_id
    assert all(slot.instance_id.startswith(f"site_spider-{socket.gethostname()}-") for slot in slots)
    slots[0].release()
    monkeypatch.setattr(socket, "gethostname", lambda: "other host")
    assert claim("group", tmp_path / "one").instance_id.startswith("site_spider-other_host-")


def test_the_folder_belongs_to_the_user_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert default_folder() == tmp_path / "site_spider"
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "missing"))
    assert default_folder().name == f"site_spider-{os.getuid()}"
    MemberSlot.claim("group", tmp_path / "new").release()
    assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700


def test_a_folder_that_another_user_made_first_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name in the folder for temporary files can be guessed."""
    home = tmp_path / "home"
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    theirs = tmp_path / f"site_spider-{os.getuid()}"
    (tmp_path / "elsewhere").mkdir()
    theirs.symlink_to(tmp_path / "elsewhere")
    MemberSlot.claim("group").release()
    assert list((home / ".local" / "state" / "site_spider").iterdir())
    assert not list((tmp_path / "elsewhere").iterdir())


def test_a_slot_is_not_taken_where_others_could_have_their_hands_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They could take all slots, or put links in the place of lock files, whose targets stay as they are.

    Nor in a folder behind a link, in a file, or in a folder of somebody else.
    """
    for name in ("slots", "real"):
        (tmp_path / name).mkdir(mode=0o700)
    (tmp_path / "slots").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    (tmp_path / "file").write_text("kept")
    for name in ("slots", "link", "file"):
        with pytest.raises(OSError, match=name) as refused:
            MemberSlot.claim("group", tmp_path / name)
        assert name == "file" or isinstance(refused.value, PermissionError)
    MemberSlot.claim("group", tmp_path / "real").release()
    [lock] = (tmp_path / "real").iterdir()
    lock.unlink()
    lock.symlink_to(tmp_path / "file")
    with pytest.raises(OSError, match="symbolic"):
        MemberSlot.claim("group", tmp_path / "real")
    monkeypatch.setattr(os, "getuid", lambda: 12345)
    with pytest.raises(PermissionError, match="another user"):
        MemberSlot.claim("group", tmp_path / "real")


def test_a_place_that_is_named_keeps_its_name_in_any_folder(claim: Callable[..., MemberSlot], tmp_path: Path) -> None:
    """A pod that is scheduled anew, on another machine, with another folder."""
    folders = [tmp_path / "before", tmp_path / "after"]
    slots = [claim("group", folder, "crawler-3") for folder in folders]
    assert [slot.instance_id for slot in slots] == ["site_spider-crawler-3-0"] * 2
    assert claim("group", folders[0], "crawler-3").instance_id == "site_spider-crawler-3-1"
