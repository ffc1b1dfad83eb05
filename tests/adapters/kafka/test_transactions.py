"""Transactions of a group member, with real Kafka."""

from __future__ import annotations

import secrets
import uuid
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from site_spider.adapters.kafka import transactions
from site_spider.adapters.kafka.client import KafkaConfig
from site_spider.adapters.kafka.consumer import KafkaConsumer
from site_spider.adapters.kafka.member_name import MemberSlot
from site_spider.adapters.kafka.positions import SignedPosition
from site_spider.adapters.kafka.seed_log import KafkaSeedLog
from site_spider.adapters.kafka.transactions import KafkaTransactions
from site_spider.contracts.seed_log import Partition, Position
from site_spider.contracts.sink import Record
from site_spider.errors import CommitInDoubt, LogUnavailable
from site_spider.results.transaction_queue import Link
from tests.contracts.folded_results import KafkaResults
from tests.contracts.seed_logs import Recorder, wait_until
from tests.contracts.sinks import record
from tests.contracts.trials import page
from tools.deployment.relay import Fault, kafka_relay

pytestmark = pytest.mark.servers

LIMIT_BYTES = 50_000


class Scene:
    """A seed topic of two partitions, a topic for results that takes small messages, and a group."""

    def __init__(self, brokers: str) -> None:
        name = uuid.uuid4().hex[:10]
        self.seeds, self.results, self.group = f"seeds-{name}", f"results-{name}", f"group-{name}"
        self.items = f"items-{name}"
        self.settings = {
            "SITE_KAFKA_BROKERS": brokers,
            "SITE_RESULTS_TOPIC": self.results,
            "SITE_ITEMS_TOPIC": self.items,
        }
        self.log = KafkaSeedLog.from_settings(self.settings)
        self.at = Partition(self.seeds, 0)
        self.members: list[KafkaConsumer] = []
        limit = {"max.message.bytes": str(LIMIT_BYTES)}
        topics = [NewTopic(self.seeds, 2, 1), *(NewTopic(n, 1, 1, config=limit) for n in (self.results, self.items))]
        admin = AdminClient({"bootstrap.servers": brokers})
        for made in admin.create_topics(topics).values():
            made.result()

    def member(self, *partitions: int) -> KafkaConsumer:
        """One more member that has these partitions, or any."""
        listener = Recorder()
        member = self.log.consumer((self.seeds,), self.group, listener, with_results=True)
        self.members.append(member)
        wanted = {Partition(self.seeds, number) for number in partitions}
        for _ in range(6_000):
            for other in self.members:
                other.poll(0.05, 10)
            if listener.owned and wanted <= listener.owned.keys():
                return member
        raise TimeoutError("no assignment")

    def stored(self) -> list[str]:
        """The keys of what a reader of committed messages sees."""
        return [key for key, _ in KafkaResults(self.settings).messages()]

    def committed(self) -> Position | None:
        return {p.partition: p.committed for p in self.log.progress(self.seeds, self.group)}[self.at]

    def close(self) -> None:
        for member in self.members:
            member.close()


@pytest.fixture
def scene(kafka_brokers: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Scene]:
    """One that waits out a broker that stands still, which production answers by another try."""
    monkeypatch.setattr(transactions, "ANSWER_SECONDS", 60.0)
    monkeypatch.setattr(transactions, "SILENCE_SECONDS", 60.0)
    scene = Scene(kafka_brokers)
    yield scene
    scene.close()


def test_results_items_links_and_positions_are_stored_together(scene: Scene) -> None:
    member = scene.member(0, 1)
    position = Position(3, "1;5;r:;")
    link = Link(scene.seeds, b"host.test", b'{"url": "http://host.test/"}', (("moved", b""),))
    item = Record("page-1", {"title": "t"}, 100, "item")
    assert member.commit_with([page(1), page(2), link, item], {scene.at: position}) == {}
    assert scene.stored() == ["1", "2"]
    assert scene.committed() == position
    assert [(message.value, *message.headers) for message in scene.log.read(scene.seeds)] == [
        (link.value, *link.headers)
    ]
    assert KafkaResults(scene.settings, "SITE_ITEMS_TOPIC").messages() == [("page-1", {"title": "t"})]
    member.commit({scene.at: Position(4)})
    assert scene.committed() == Position(4)
    large = Record("page-2", {"body": secrets.token_hex(4 * LIMIT_BYTES)}, 100, "item")
    refused = member.commit_with([large], {scene.at: Position(5)})
    assert "refuses the message" in refused[0]
    assert scene.committed() == Position(4)


class Saboteur:
    """A client whose commit ends in silence, after or before it was carried out."""

    def __init__(self, client: Producer, *, carries_out: bool) -> None:
        self._client = client
        self._carries_out = carries_out

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def commit_transaction(self, timeout_seconds: float) -> None:
        if self._carries_out:
            self._client.commit_transaction(timeout_seconds)
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


def transactions_of(member: KafkaConsumer) -> Any:
    return member._transactions


def test_a_member_that_was_fenced_commits_on_when_it_has_joined_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot = MemberSlot.claim(scene.group)
    monkeypatch.setattr(MemberSlot, "claim", lambda _group, place="": slot)
    member = scene.member(0, 1)
    listener = Recorder()
    rival = scene.log.consumer((scene.seeds,), scene.group, listener, with_results=True)
    wait_until(lambda: [rival.poll(0.05, 10), listener.owned][1])
    rival.close()
    with pytest.raises(LogUnavailable):
        member.commit_with([page(1)], {scene.at: Position(1)})

    def commits() -> bool:
        member.poll(0.05, 10)
        try:
            return not member.commit_with([page(2)], {scene.at: Position(2)})
        except LogUnavailable:
            return False  # it has not joined yet

    wait_until(commits)
    assert scene.stored() == ["2"]
    assert scene.committed() == Position(2)


def test_a_result_over_the_brokers_limit_is_cut_and_its_company_is_whole(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever batch it was in; nothing is stored twice for the attempts."""
    member = scene.member(0)
    items = [page(number) for number in range(20)]
    items[7] = Record("large", {"url_id": "large", "body": secrets.token_hex(150_000)}, 300_000)
    assert member.commit_with(items, {scene.at: Position(1)}) == {}
    found = KafkaResults(scene.settings).messages()
    assert sorted(key for key, _ in found) == sorted(item.key for item in items)
    large = dict(found)["large"]
    assert large["body_truncated"] is True
    assert "The body of large is cut" in caplog.text
    assert len(large["body"]) > LIMIT_BYTES / 2
    assert [document for key, document in found if key != "large"] == [
        item.document for item in items if item.key != "large"
    ]


@pytest.mark.parametrize("poison", [{"headers": secrets.token_hex(100_000)}, {"latency_ms": float("nan")}])
def test_what_cannot_be_stored_is_named_and_nothing_is_stored(scene: Scene, poison: dict[str, Any]) -> None:
    member = scene.member(0)
    items = [page(0), record("poison", poison), page(2)]
    assert member.commit_with(items, {scene.at: Position(1)}).keys() == {1}
    assert (scene.stored(), scene.committed()) == ([], None)
    assert member.commit_with([items[0], items[2]], {scene.at: Position(1)}) == {}
    assert scene.stored() == ["0", "2"]


def test_a_member_of_an_earlier_generation_stores_nothing(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The group went on without it: the coordinator refuses its offsets, and its results stay unseen."""
    first = scene.member(0, 1)
    transactions = transactions_of(first)
    stale = transactions._membership()
    scene.member()
    monkeypatch.setattr(transactions, "_membership", lambda: stale)
    with pytest.raises(LogUnavailable):
        transactions.run([page(1)], {scene.at: SignedPosition(1)})
    assert (scene.stored(), scene.committed()) == ([], None)
    monkeypatch.undo()
    assert transactions.run([page(1)], {scene.at: SignedPosition(1)}) == {}
    assert scene.stored() == ["1"]


def test_who_is_no_member_stores_nothing(scene: Scene) -> None:
    """Without a generation the coordinator would let it pass."""
    config = KafkaConfig.from_settings(scene.settings)
    outsider = Consumer(config.member(scene.group, None, lambda _error: None))
    transactions = KafkaTransactions(config, scene.group, {"result": scene.results}, outsider)
    with pytest.raises(LogUnavailable, match="no member"):
        transactions.run([page(1)], {scene.at: SignedPosition(1)})
    assert (scene.stored(), scene.committed()) == ([], None)
    transactions.close()
    outsider.close()


@pytest.mark.parametrize("carries_out", [True, False])
def test_after_a_silent_commit_the_positions_tell_what_became_of_it(scene: Scene, *, carries_out: bool) -> None:
    member = scene.member(0)
    member.commit({scene.at: Position(1)})
    transactions = transactions_of(member)
    transactions._client = Saboteur(transactions._client, carries_out=carries_out)
    positions = {scene.at: Position(2)}
    with pytest.raises(CommitInDoubt):
        member.commit_with([page(1)], positions)
    with pytest.raises(LogUnavailable):
        member.commit({scene.at: Position(9)})
    member._ids.forget()  # a commit may have been signed with an id, or without, that is another one now
    assert member.was_committed(positions) is carries_out
    assert scene.committed() == Position(2 if carries_out else 1)
    assert scene.stored() == (["1"] if carries_out else [])
    assert member.commit_with([page(2)], {scene.at: Position(3)}) == {}
    assert scene.stored() == (["1", "2"] if carries_out else ["2"])


def test_nobody_has_to_ask_what_became_of_positions_alone(scene: Scene) -> None:
    """As when partitions leave: nothing waits for the answer, and the next transaction ends this one."""
    member = scene.member(0)
    transactions = transactions_of(member)
    transactions._client = Saboteur(transactions._client, carries_out=False)
    with pytest.raises(CommitInDoubt):
        member.commit({scene.at: Position(1)})
    assert member.commit_with([page(1)], {scene.at: Position(2)}) == {}
    assert (scene.stored(), scene.committed()) == (["1"], Position(2))


def test_offsets_are_sent_when_all_connections_have_ended_meanwhile(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else this waits without end, and so does the member, whose thread it is."""
    member = scene.member(0)
    own, membership = transactions_of(member), transactions_of(member)._membership()
    with kafka_relay(scene.settings["SITE_KAFKA_BROKERS"]) as relay:
        transactions = KafkaTransactions(KafkaConfig(relay.address), "id", own._topics, member._client)
        transactions._outsider = own._outsider  # it was made after its member had joined

        def cut() -> Any:
            relay.begin(Fault.REFUSE)
            relay.heal()
            return membership

        assert transactions.run([page(1)], {scene.at: SignedPosition(1)}) == {}
        monkeypatch.setattr(transactions, "_membership", cut)
        assert transactions.run([page(2)], {scene.at: SignedPosition(2)}) == {}
        assert (scene.stored(), scene.committed()) == (["1", "2"], Position(2))
        transactions.close()


def test_what_a_dead_process_left_open_is_ended_by_its_successor(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the same slot, hence the same id: readers wait for no timeout."""
    member = scene.member(0)
    transactions = transactions_of(member)
    left_open: Callable[..., None] = lambda *_arguments: None  # noqa: E731 - dies before the commit
    monkeypatch.setattr(transactions, "_finish", left_open)
    transactions.run([page(1)], {})
    successor = type(transactions)(transactions._config, transactions._identity, transactions._topics, member._client)
    assert scene.stored() == []
    successor._outsider = transactions._outsider  # it was made after its member had joined
    assert successor.run([page(2)], {scene.at: SignedPosition(1)}) == {}
    assert scene.stored() == ["2"]
    successor.close()


@pytest.mark.parametrize("code", [KafkaError._PURGE_QUEUE, KafkaError.TOPIC_AUTHORIZATION_FAILED])
def test_a_right_that_a_transaction_lacks_is_named(code: int) -> None:
    """Without Write the client purges the messages, and says why only when it is asked for more."""

    class Purged(Saboteur):
        def produce(self, *_arguments: Any, on_delivery: Callable[[KafkaError, None], None], headers: Any) -> None:
            on_delivery(KafkaError(code), None)

        def begin_transaction(self) -> None:
            if self.begun:
                raise KafkaException(KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
            self.begun = True

        begun = False
        poll = abort_transaction = purge = lambda *_arguments: None

    made = KafkaTransactions.__new__(KafkaTransactions)
    made._config, made._topics, made._in_doubt = KafkaConfig("host:9092"), {"result": "results"}, False
    made._client = Purged(None, carries_out=False)  # type: ignore[arg-type,assignment]
    with pytest.raises(LogUnavailable, match="Write and Describe on the topics results, and create"):
        made.run([page(1), page(2)], {})
