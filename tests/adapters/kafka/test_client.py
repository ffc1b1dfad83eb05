"""What the settings of Kafka may and may not say, and certificates that are replaced."""

from __future__ import annotations

import ctypes
import logging
import threading
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from site_spider.adapters import files
from site_spider.adapters.kafka import transactions
from site_spider.adapters.kafka.assignment import OwnerWatch
from site_spider.adapters.kafka.client import BrokerHealth, Certificates, KafkaConfig, LastErrors
from site_spider.adapters.kafka.member_name import MemberSlot
from site_spider.adapters.kafka.positions import SignedPosition, TopicIds
from site_spider.adapters.kafka.seed_log import KafkaSeedLog, KafkaTopicReader
from site_spider.adapters.kafka.transactions import KafkaTransactions
from site_spider.bounded import LogLimit
from site_spider.contracts.seed_log import Partition
from site_spider.errors import ConfigError, LogUnavailable
from tests.authority import Authority
from tests.contracts.seed_logs import PATIENCE_SECONDS, Member, wait_until


def config(brokers: str = "host:9092", **settings: object) -> KafkaConfig:
    return KafkaConfig.from_settings({"SITE_KAFKA_BROKERS": brokers} | settings)


@pytest.mark.parametrize(
    "brokers", ["", "  ", "host", "host:", ":9092", "host:0", "host:65536", "host:x", "a b:1", "a:1,,b:2", "a:1;b:2"]
)
def test_malformed_addresses_are_refused(brokers: str) -> None:
    with pytest.raises(ConfigError, match="SITE_KAFKA_BROKERS"):
        config(brokers)


@pytest.mark.parametrize("brokers", ["host:9092", "a.b-c_d:1, 10.0.0.1:65535", "[::1]:9092", "SASL_SSL://host:1"])
def test_addresses_are_taken_without_blanks(brokers: str) -> None:
    assert config(brokers).brokers == brokers.replace(" ", "")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("enable.auto.commit", True),
        ("enable.auto.commit", "true"),
        ("enable.auto.offset.store", True),
        ("group.id", "mine"),
        ("group.instance.id", "mine"),
        ("auto.offset.reset", "latest"),
        ("partition.assignment.strategy", "range"),
        ("acks", 1),
        ("enable.idempotence", False),
        ("bootstrap.servers", "other:9092"),
        ("group.protocol", "consumer"),
        ("sasl.username", {"a": 1}),
    ],
)
def test_options_that_break_the_promise_are_refused(option: str, value: object) -> None:
    with pytest.raises(ConfigError, match=f"SITE_KAFKA_OPTIONS sets {option}"):
        config(SITE_KAFKA_OPTIONS={option: value})


def test_options_that_keep_the_promise_are_passed_on_and_a_member_is_static_where_it_has_a_name() -> None:
    made = config(SITE_KAFKA_OPTIONS='{"enable.auto.commit": false, "linger.ms": 5, "sasl.username": "me"}')
    clients = [
        made.admin(print),
        made.producer(print),
        made.reader("group", print),
        made.member("group", "instance", print),
    ]
    for client in clients:
        assert (client["linger.ms"], client["sasl.username"], client["enable.auto.commit"]) == (5, "me", "false")
    assert (clients[-1]["group.instance.id"], clients[-1]["session.timeout.ms"]) == ("instance", 10_000)
    assert "group.instance.id" not in made.member("group", None, print)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"no.such.option": 1}, r"SITE_KAFKA_OPTIONS.*no\.such\.option"),
        (
            {"security.protocol": "ssl", "ssl.ca.location": "/no/such.pem"},
            r"used: [^{]*ssl\.ca\.location is /no/such\.pem\.$",
        ),
    ],
)
def test_what_the_client_does_not_take_is_refused_at_once(options: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        KafkaSeedLog(config(SITE_KAFKA_OPTIONS=options))


def test_what_a_member_takes_a_reader_takes_as_well_or_says_no() -> None:
    """`scrapy progress` and the commands that read a topic ended with a traceback where the crawl ran."""
    KafkaTopicReader(config(SITE_KAFKA_OPTIONS={"max.poll.interval.ms": 20_000}), "seeds", {}).close()
    with pytest.raises(ConfigError, match=r"SITE_KAFKA_OPTIONS cannot be used.*receive\.message\.max\.bytes"):
        KafkaTopicReader(config(SITE_KAFKA_OPTIONS={"receive.message.max.bytes": 2_000_000}), "seeds", {})


# --- health --------------------------------------------------------------------------------


def test_an_outage_is_said_once_and_its_end_too(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("site_spider.adapters.kafka.client._PROBE_INTERVAL_SECONDS", 0)
    caplog.set_level(logging.INFO)
    health = BrokerHealth("host:1", "the consumer", question := Mock())
    health.look()
    assert caplog.records == []
    question.side_effect = KafkaException(KafkaError(KafkaError._TRANSPORT, "no route"))
    for _ in range(5):
        health.on_error(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
        health.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
        health.look()
    for _ in range(2):  # they come back with another password, and go again
        health.on_error(KafkaError(KafkaError._AUTHENTICATION, "wrong password"))
        health.on_error(KafkaError(KafkaError._TRANSPORT, "Connection refused"))
        health.look()
    question.side_effect = None
    health.look()
    health.look()
    (gone, refused, back, _) = caplog.records
    assert (gone.levelname, refused.levelname, back.levelname) == ("WARNING", "WARNING", "INFO")
    assert "of SITE_KAFKA_OPTIONS: wrong password" in refused.message
    assert "SITE_KAFKA_BROKERS" in gone.message
    assert "host:1" in gone.message
    assert "Connection refused" in gone.message


def test_a_quota_that_delays_answers_is_named_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log said that Kafka did not answer. The client tells of produce and fetch requests, in its poll."""
    monkeypatch.setattr("site_spider.adapters.kafka.client._throttled", LogLimit(1, 600.0))
    say = config().producer(lambda _error: None)["throttle_cb"]
    for seconds in (0.01, 2.0, 3.0):
        say(Mock(broker_name="host:9092", throttle_time=seconds))
    [told] = caplog.messages
    assert "host:9092 delays its answers to this process, now by 2.0 s, for a quota" in told


def test_the_setting_that_is_to_blame_is_named() -> None:
    words, late = LastErrors("host:1"), KafkaException(KafkaError(KafkaError._TIMED_OUT))
    assert "SITE_KAFKA_BROKERS" in str(words.unavailable(late))
    assert "SITE_KAFKA_OPTIONS" in str(
        words.unavailable(KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED)))
    )
    words(KafkaError(KafkaError._SSL, "certificate verify failed"))  # we refuse theirs
    assert "with the login and the certificates of SITE_KAFKA_OPTIONS: cert" in str(words.unavailable(late))


def test_a_closed_idle_connection_is_no_outage(caplog: pytest.LogCaptureFixture) -> None:
    """The client reports it in the same words; the servers answer."""
    health = BrokerHealth("host:1", "the consumer", Mock())
    health.on_error(KafkaError(KafkaError._ALL_BROKERS_DOWN, "1/1 brokers are down"))
    assert health.suspected
    health.look()
    assert not health.suspected
    assert caplog.records == []


@pytest.mark.parametrize("scheme", ["http", "https", "kafka", "HTTP", "tcp"])
def test_another_scheme_before_a_broker_is_said(scheme: str) -> None:
    """The client would try to resolve it, for ever; what may stand behind it is not shown."""
    with pytest.raises(ConfigError) as caught:
        config(f"kafka1:9092,{scheme}://user:s3cret@kafka2:9092")
    assert f"begins with {scheme}://" in str(caught.value)
    assert "Write host:port alone" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.parametrize("name", ["a b", "a/b", "é", "x" * 101])
def test_a_member_name_that_kafka_would_not_take_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="SITE_MEMBER_NAME"):
        config(SITE_MEMBER_NAME=name)


# --- Clients of Kafka are made anew when certificates were replaced, and lose nothing by it


@pytest.fixture(autouse=True)
def look_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "LOOK_SECONDS", 0.0)


@pytest.fixture
def brokers() -> Iterator[str]:
    admin = AdminClient({"bootstrap.servers": "mock", "test.mock.num.brokers": 1})
    yield ",".join(f"{one.host}:{one.port}" for one in admin.list_topics(timeout=300).brokers.values())
    del admin


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    file = tmp_path / "ca.pem"
    file.write_text("before")
    return file


def renew(authority: Path) -> None:
    fresh = authority.with_suffix(".new")
    fresh.write_text("after")
    fresh.rename(authority)


def test_a_member_joins_again_and_repeats_nothing(
    brokers: str, authority: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is complete is committed before, and the producer and the reader go on as well."""
    caplog.set_level(logging.INFO)
    # the mock has a static member wait for the end of its own session, any for nearly so long; it knows no ids
    monkeypatch.setattr(MemberSlot, "try_claim", lambda *_named: None)
    monkeypatch.setattr("site_spider.adapters.kafka.positions._WAIT_SECONDS", 0.1)
    # the process, and the mock within it, may stand still: it must not end the session by that
    patient = {"session.timeout.ms": 15_000, "heartbeat.interval.ms": 300}
    log = KafkaSeedLog(KafkaConfig(brokers, {"ssl.ca.location": str(authority), **patient}))
    producer, member = log.producer(), Member(log, "seeds", "group")
    member.commit_when_leaving()
    reader = log.reader("seeds", compacted=False)

    seen: list[bytes | None] = []

    def has_read(count: int) -> bool:
        seen.extend(message.value for message in reader.poll(0.1))
        return len(seen) >= count

    def send(text: str) -> list[bytes]:
        values = [f"{text} {number}".encode() for number in range(20)]
        for future in [producer.send("seeds", value, value) for value in values]:
            future.result(PATIENCE_SECONDS)
        return values

    first = send("before")
    member.take(20)
    wait_until(lambda: has_read(20))
    renew(authority)
    wait_until(lambda: (member.poll(), has_read(0), caplog.text.count("begins to use them") == 3)[2])
    second = send("after")
    assert sorted(filter(None, (message.value for message in member.take(40)))) == sorted(first + second)
    wait_until(lambda: has_read(40))
    assert sorted(filter(None, seen)) == sorted(first + second)
    assert [what for _, what, _ in member.listener.events if what == "lost"] == []
    member.close()
    reader.close()
    producer.close()


def test_files_with_which_nobody_answers_are_not_taken_and_said_once(
    nobody: str, authority: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("site_spider.adapters.kafka.client._ANSWER_SECONDS", 0.1)
    certificates = Certificates(KafkaConfig(nobody, {"ssl.ca.location": str(authority)}), "the client")
    assert not certificates.are_renewed()
    renew(authority)
    assert [certificates.are_renewed() for _ in range(3)] == [False] * 3
    (said,) = [record.message for record in caplog.records]
    assert "SITE_KAFKA_OPTIONS" in said
    assert str(authority) not in said


def test_a_client_that_has_to_be_made_meanwhile_waits_for_the_rest_of_the_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of each look at the group's positions, say, or by a member that was fenced. A start says what is wrong."""
    before, after = Authority(tmp_path / "before", "before"), Authority(tmp_path / "after", "after")
    names = {"ca": "ca.pem", "certificate": "client.pem", "key": "client.key"}
    options = {f"ssl.{option}.location": str(tmp_path / "used" / name) for option, name in names.items()}
    config = KafkaConfig("127.0.0.1:9", {"security.protocol": "SSL", **options})

    def made(config: KafkaConfig = config) -> AdminClient:
        return config.made(AdminClient, config.admin(lambda _error: None))

    before.give_to_client(tmp_path / "used")
    made()
    after.give_to_client(tmp_path / "used", "client.pem")
    with pytest.raises(ConfigError, match=r"ssl\.key\.location is"):
        made(replace(config))
    watch = OwnerWatch(TopicIds(config).client, "group", ["seeds"])  # which a member asks before it joins
    assert (watch.owes_join("member"), watch.is_to_rejoin(str, 0.0)) == (True, False)
    monkeypatch.setattr("site_spider.adapters.kafka.client._REST_SECONDS", 0.0)
    with pytest.raises(LogUnavailable, match=r"ssl\.key\.location is"):
        made()
    monkeypatch.undo()
    threading.Timer(0.5, after.give_to_client, [tmp_path / "used"]).start()
    made()


def test_without_files_nothing_is_looked_at(brokers: str) -> None:
    assert not Certificates(KafkaConfig(brokers), "the client").are_renewed()


def test_a_start_waits_for_a_server_of_tokens_that_is_away(nobody: str) -> None:
    """Which is an outage, and no setting that cannot be used; the reason is said."""
    oidc = {"method": "oidc", "client.id": "id", "client.secret": "s", "token.endpoint.url": f"http://{nobody}/"}
    options = {f"sasl.oauthbearer.{name}": value for name, value in oidc.items()}
    login = {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "OAUTHBEARER"}
    log = KafkaSeedLog(KafkaConfig(nobody, login | options))
    with pytest.raises(LogUnavailable, match="Failed to acquire SASL OAUTHBEARER token: Failed to connect"):
        log.check(1.0)


@pytest.mark.parametrize(
    ("said", "is_refusal"),
    [
        ("Failed to connect to tokens.test port 443 (-1)", False),
        ('{"error": "temporarily_unavailable"} (503)', False),
        ('{\n "error": "invalid_client",\n "error_description": "Bad secret"}', True),
        ('{"error":"unauthorized_client"}', True),
    ],
)
def test_a_server_of_tokens_that_refuses_the_login_is_not_away(said: str, is_refusal: bool) -> None:
    words = LastErrors("k:9")
    words(KafkaError(KafkaError._AUTHENTICATION, f"Failed to acquire SASL OAUTHBEARER token: {said}"))
    assert words.is_refusal is is_refusal


def test_a_client_that_is_given_up_does_not_live_on_in_its_error(nobody: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end waits for names and tokens that are asked for: up to 20 s, on the event loop if the error is there."""
    monkeypatch.setattr("site_spider.adapters.kafka.seed_log._ANSWER_SECONDS", 0.1)
    log = KafkaSeedLog(KafkaConfig(nobody))
    client = weakref.ref(log._admin)
    with pytest.raises(LogUnavailable) as caught:
        log.partitions("topic")
    assert client() is None
    assert caught.value.__cause__ is not None


def test_transactions_that_cannot_begin_say_what_the_servers_refuse(monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong password, say: that nobody answered in time was all that was told."""
    monkeypatch.setattr(transactions, "ANSWER_SECONDS", 1.0)
    member = Mock(consumer_group_metadata=lambda: b"outside of the group")
    made = KafkaTransactions(KafkaConfig("127.0.0.1:9"), "id", {"result": "results"}, member)
    with pytest.raises(LogUnavailable, match="Connection refused"):
        made.run([], {})


def test_a_coordinator_that_dies_under_the_offsets_does_not_hold_up_the_consumer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The client never returns: another one ends what was open."""
    over = threading.Event()
    stuck = Mock(send_offsets_to_transaction=lambda *_arguments: over.wait(300))
    monkeypatch.setattr(transactions, "OFFSETS_SECONDS", 0.1)
    made = KafkaTransactions.__new__(KafkaTransactions)
    made._in_doubt, made._outsider, made._client = False, b"", stuck
    made._member = Mock(consumer_group_metadata=lambda: b"of a member of the group")
    with pytest.raises(LogUnavailable, match="did not take offsets"):
        made.run([], {Partition("seeds", 0): SignedPosition(1)})
    assert made._client is None
    over.set()


# --- what only other clients write ---------------------------------------------------------------------------


def produce_raw(brokers: str, topic: str, *names: bytes) -> None:
    """With headers of any names, by the C library: its Python takes none that is not UTF-8."""
    (path,) = Path(confluent_kafka.__file__).parents[1].glob("confluent_kafka.libs/librdkafka-*.so*")
    library = ctypes.CDLL(str(path))
    for name in ("conf_new", "new", "headers_new"):
        getattr(library, f"rd_kafka_{name}").restype = ctypes.c_void_p
    said = ctypes.create_string_buffer(512)
    settings = ctypes.c_void_p(library.rd_kafka_conf_new())
    assert library.rd_kafka_conf_set(settings, b"bootstrap.servers", brokers.encode(), said, 512) == 0
    producer = ctypes.c_void_p(library.rd_kafka_new(0, settings, said, 512))
    headers = ctypes.c_void_p(library.rd_kafka_headers_new(len(names)))
    for name in names:
        library.rd_kafka_header_add(headers, name, ctypes.c_ssize_t(len(name)), b"x", ctypes.c_ssize_t(1))
    of_topic, of_value, of_headers, copied = (
        (1, topic.encode(), 3, 0),
        (4, b"{}", ctypes.c_size_t(2)),
        (10, headers),
        (7, 2),
    )
    assert library.rd_kafka_producev(producer, *of_topic, *of_value, *copied, *of_headers, 0) == 0
    assert library.rd_kafka_flush(producer, 300_000) == 0
    library.rd_kafka_destroy(producer)


def test_no_header_of_a_message_ends_the_process() -> None:
    """The client raises for a name that is not UTF-8, at each start again; and a megabyte holds 300,000 of them."""
    broker = Producer({"bootstrap.servers": "none", "test.mock.num.brokers": 1, "log_level": 0})
    (server,) = broker.list_topics().brokers.values()
    address = f"{server.host}:{server.port}"
    for number in range(200):  # until Python has seen enough of the call to do without its checks
        broker.produce("seeds", b"{}", partition=0, headers={"n": str(number)})
    broker.flush()
    for names in ([b"gr\xf6sse"], [b"size"], [b"n"] * 1_000):
        produce_raw(address, "seeds", *names)
    messages = list(KafkaSeedLog.from_settings({"SITE_KAFKA_BROKERS": address}).read("seeds"))
    found = sorted(len(message.headers) for message in messages)
    assert found[:-1] == [0, *[1] * 201]
    assert found[-1] < 100
