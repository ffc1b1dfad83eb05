"""Notices of troubles: what is one, how often it is told, and to whom."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import socket
import socketserver
import ssl
import threading
import time
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider import signed_post
from site_spider.contracts.sink import Record, Verdict
from site_spider.engine.background import Background
from site_spider.errors import ConfigError
from site_spider.redaction import Redaction, secrets_of
from site_spider.service import notices
from site_spider.service.notices import Notifier, Troubles, sender
from site_spider.service.wiring import Parts
from site_spider.spiders.crawl_spider import SeedSpider
from tests.adapters.raw_server import answering, said
from tests.in_process.engine import ANSWERS, crawl, page
from tests.in_process.scripted_sink import ScriptedSink
from tests.project_settings import ours as settings
from tests.tasks.test_end_in_crawl import KEY, Receiver, receiver, signature
from tools.site.certificate import tls_for

__all__ = ["receiver"]

SEED = {"url": "http://h.test/"}


def test_full_memory_is_told_to_a_webhook_that_is_signed(tmp_path: Path, receiver: Receiver) -> None:
    crawl(
        tmp_path,
        [SEED],
        until=lambda crawler: bool(receiver.requests) and crawler.stats.get_value("seeds/completed_with_result") == 1,
        SITE_NOTIFY_URL=f"{receiver.url}&who=Jürgen",
        SITE_MEMORY_SOFT_BYTES=1,
        SITE_ALLOW_PRIVATE_HOSTS=True,
        SITE_SPILL_KEY=KEY,
    )
    [(_, _, headers, body)] = receiver.requests
    said = json.loads(body)
    assert (said["event"], said["trouble"], said["spider"]) == ("begins", "memory", "crawl_spider")
    assert headers["x-site-spider-event-id"] == f"{said['process']}.1"
    assert headers["x-site-spider-signature"] == signature(headers, body)


def test_a_private_address_is_not_reached_and_the_crawl_goes_on(
    tmp_path: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    found = crawl(
        tmp_path,
        [SEED],
        until=lambda crawler: (
            "cannot be sent" in caplog.text and crawler.stats.get_value("downloader/response_count") == 1
        ),
        SITE_NOTIFY_URL=receiver.url,
        SITE_MEMORY_SOFT_BYTES=1,
        SITE_ALLOW_PRIVATE_HOSTS=False,
    )
    assert (receiver.requests, found.exit_code, len(found.documents)) == ([], 0, 1)


class Item(SeedSpider):
    def parse(self, response: Response) -> Iterator[Any]:  # type: ignore[override]
        yield {"n": 1}


class AwaySink(ScriptedSink):
    """Until that is told."""

    told: ClassVar[list[tuple[str, str]]] = []

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        self.away = ("sink scripted", "begins") not in self.told
        return await super().write(records)


def test_a_crawl_tells_that_it_stands_has_no_items_and_a_sink_that_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page is answered when a notice has said that nothing goes on; then its result cannot be written."""
    told: list[tuple[str, str]] = []

    def post(_url: str, _secret: bytes, _may_reach: Any, said: Mapping[str, Any]) -> str:
        told.append((said["trouble"], said["event"]))
        return ""

    async def answer(request: Request) -> Response:
        while ("stands", "begins") not in told:
            await asyncio.sleep(5)
        return page(request)

    for name, value in {"_post": post, "_AWAY_SECONDS": 60.0, "_STANDS_SECONDS": 60.0}.items():
        monkeypatch.setattr(notices, name, value)
    monkeypatch.setattr(AwaySink, "told", told)
    monkeypatch.setitem(ANSWERS, "/", answer)
    troubles = ["no items", "stands", "sink scripted"]
    found = crawl(
        tmp_path,
        [SEED],
        Item,
        until=lambda crawler: len(told) >= 6 and crawler.stats.get_value("seeds/completed_with_result") == 1,
        SITE_NOTIFY_URL="https://hook.test/",
        SITE_NOTIFY_NO_ITEMS_SECONDS=40,
        SITE_SINKS="scripted,local",
        SITE_SINK_CLASSES={"scripted": f"{__name__}.AwaySink", "local": "site_spider.adapters.local.results.LocalSink"},
    )
    assert [trouble for trouble, event in told if event == "begins"] == troubles
    assert sorted(trouble for trouble, event in told if event == "is over") == sorted(troubles)
    assert (found.exit_code, found.lag, len(found.documents), len(found.items)) == (0, 0, 1, 1)


@pytest.mark.parametrize(
    "before",
    [
        b"100 Continue\r\n\r\n",
        b"103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 102 x\r\n\r\n",
        b"103 Early Hints\r\n%b\r\n" % (b"Link: </style.css>; rel=preload; as=style\r\n" * 100),
    ],
    ids=["continue", "two", "many links"],
)
def test_what_a_receiver_says_before_its_answer_is_none(before: bytes) -> None:
    """Else it would get the same again and again."""
    with answering(lambda _asked: b"HTTP/1.1 " + before + said(b"", 204)) as address:
        assert signed_post.post(address, {}, b"", lambda _host, _address: True, "1") == (204, "")
    with answering(lambda _asked: b"HTTP/1.1 " + before) as address:
        assert signed_post.post(address, {}, b"", lambda _host, _address: True, "1")[1] != ""


@pytest.mark.parametrize("may", [False, True])
def test_the_address_that_is_connected_to_is_the_one_that_is_judged(receiver: Receiver, *, may: bool) -> None:
    """Whatever the name had for an address before."""
    url, asked = receiver.url.replace("127.0.0.1", "localhost"), set[str]()

    def may_reach(host: str, address: str) -> bool:
        asked.add(host)
        return may and address == "127.0.0.1"

    status, error = signed_post.post(url, {}, b"", may_reach, "1")
    assert (status, len(receiver.requests)) == ((204, 1) if may else (0, 0))
    assert ("localhost has no public address" in error) is not may
    assert asked == {"localhost"}


def test_names_are_looked_up_on_the_thread_that_posts(receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a process waits for threads of a pool, and a name server that hangs may take a minute."""
    threads, look_up = [], socket.getaddrinfo

    def looked_up(*asked: Any, **how: Any) -> Any:
        threads.append(threading.current_thread())
        return look_up(*asked, **how)

    monkeypatch.setattr(socket, "getaddrinfo", looked_up)
    url = receiver.url.replace("127.0.0.1", "localhost")
    assert signed_post.post(url, {}, b"", lambda _host, address: "." in address, "1") == (204, "")
    assert threads == [threading.current_thread()]


def slowly(part: bytes) -> bytes:
    time.sleep(0.01)
    return part


def without_end(part: bytes) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\n"
    while True:
        yield part


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (lambda: without_end(b"a: b\r\n" * 100), 0, "ClientResponseError: Too many headers"),
        (lambda: without_end(b"a" * 1_000), 0, "ClientResponseError: Got more than 8190 bytes"),
        (lambda: without_end(b"\r\n"), 200, ""),
        (lambda: map(slowly, itertools.repeat(b"HTTP/1.1 102 Processing\r\n\r\n")), 0, "TimeoutError: no answer"),
        (lambda: [b"HTTP/1.1 302 Found\r\nLocation: /other\r\n\r\n"], 302, "HTTP 302"),
        (lambda: [b"no HTTP\r\n\r\n"], 0, "ClientResponseError: Bad status line"),
        (list, 0, "ServerDisconnectedError: Server disconnected"),
    ],
    ids=["many headers", "a long line", "a long body", "it trickles", "a redirect", "no HTTP", "nothing"],
)
def test_of_an_answer_only_the_head_is_read_and_not_for_long(
    monkeypatch: pytest.MonkeyPatch, answer: Callable[[], Iterable[bytes]], status: int, said: str
) -> None:
    """What is said of it does not show the URL, which may be a secret."""
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setattr(signed_post, "_SECONDS", 0.5 if said.startswith("Timeout") else 60)
    with answering(lambda _asked: answer()) as address:
        found, error = signed_post.post(f"{address}/s3cret", {}, b"", lambda _host, _address: True, "1")
    assert (found, error[: len(said)]) == (status, said)
    assert "s3cret" not in error
    assert "\n" not in error


@pytest.mark.parametrize("url", ["ftp://h", "h", "http://", "http://a:b@h/", "mailto:", "mailto:a", "mailto:a@b,c"])
def test_a_wrong_url_ends_the_start(url: str) -> None:
    given = settings(SITE_NOTIFY_URL=url)
    with pytest.raises(ConfigError, match="SITE_NOTIFY_URL") as refused:
        sender(given, ())
    shown = Redaction(secrets_of(given))(str(refused.value))  # hides the URL, but not what to write
    assert (" ops@host.example" in shown) == url.startswith("mailto:")


@pytest.mark.parametrize("form", ["hooks.test/{}", "https://ho oks.test/{}", "https://h.test/{}\t", "https://h/{0}{0}"])
def test_a_wrong_url_that_is_long_is_not_shown_in_part(form: str) -> None:
    """Who knows it may send notices; logs hide it as a whole alone."""
    with pytest.raises(ConfigError, match="SITE_NOTIFY_URL cannot be used") as refused:
        sender(settings(SITE_NOTIFY_URL=form.format("s3cret/" * 1_000) + "end"), ())
    assert "s3cret" not in str(refused.value)


def test_without_a_url_nobody_looks() -> None:
    assert sender(settings(), ()) is None
    with pytest.raises(ConfigError, match="SITE_NOTIFY_NO_ITEMS_SECONDS"):
        sender(settings(SITE_NOTIFY_NO_ITEMS_SECONDS=-1), ())


class Mail(socketserver.StreamRequestHandler):
    lines: list[bytes]
    tls: ssl.SSLContext

    def handle(self) -> None:
        self.wfile.write(b"220 here\r\n")
        is_data, answers = (
            False,
            {b"DATA": b"354 go on", b"QUIT": b"221 bye", b"STAR": b"220 begin", b"AUTH": b"235 in"},
        )
        answers[b"EHLO"] = b"250-here\r\n250-STARTTLS\r\n250 AUTH PLAIN"
        while line := self.rfile.readline():
            self.lines.append(line)
            if is_data and line != b".\r\n":
                continue
            command = line[:4].upper()
            is_data = command == b"DATA"
            well = b"550 nobody here" if b"<nobody@" in line else b"250 well"
            self.wfile.write(answers.get(command, well) + b"\r\n")
            if command == b"STAR":
                self.request = self.tls.wrap_socket(self.request, server_side=True)
                self.setup()
            if command == b"QUIT":
                return

    def finish(self) -> None:
        super().finish()
        self.connection.close()  # in TLS another one than its server closes


@contextmanager
def mailing(folder: Path, *, is_tls: bool) -> Iterator[tuple[int, Path]]:
    """The port of a server, and the file of the authority that it is certified by."""
    Mail.lines = []
    Mail.tls, trusted = tls_for("127.0.0.1", folder)
    with socketserver.TCPServer(("127.0.0.1", 0), Mail) as server:
        server.handle_error = lambda *_: None  # type: ignore[method-assign] # of a client that trusts nobody
        if is_tls:
            server.socket = Mail.tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1], trusted
        server.shutdown()
        thread.join()


MESSAGE = {"spider": "s", "host_name": "host", "trouble": "memory", "event": "begins", "says": "it is\nfull"}
MESSAGE |= {"at": 1_700_000_000.5}


def sender_of_mail(port: int, url: str = "mailto:a@h.test", **told: Any) -> notices.Send:
    found = sender(settings(SITE_NOTIFY_URL=url, MAIL_HOST="127.0.0.1", MAIL_PORT=port, **told), ())
    assert found is not None
    return found


def test_mail_goes_by_the_settings_of_scrapy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with mailing(tmp_path, is_tls=False) as (port, _):
        send = sender_of_mail(port, "mailto:a@h.test,b@h.test,nobody@h.test", MAIL_FROM="crawler@h.test")
        assert send(MESSAGE) == ""
    text, lines = b"".join(Mail.lines), {line.lower() for line in Mail.lines}
    assert {b"rcpt to:<a@h.test>\r\n", b"rcpt to:<b@h.test>\r\n", b"from: crawler@h.test\r\n"} < lines
    assert any(line.startswith(b"mail from:<crawler@h.test>") for line in lines)
    assert b"Subject: s on host: memory begins" in text
    assert b"Date: Tue, 14 Nov 2023 22:13:20 -0000" in text
    assert "not to these addresses of SITE_NOTIFY_URL: {'nobody@h.test': (550, b'nobody here')}" in caplog.text
    assert send(MESSAGE).startswith("ConnectionRefusedError")


@pytest.mark.parametrize("way", ["MAIL_TLS", "MAIL_SSL"])
@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_password_for_mail_goes_by_tls_to_a_server_that_is_trusted(
    way: str, is_trusted: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mailing(tmp_path, is_tls=way == "MAIL_SSL") as (port, trusted):
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted) if is_trusted else os.devnull)
        answer = sender_of_mail(port, MAIL_USER="us", MAIL_PASS="s3cret", **{way: True})(MESSAGE)
    logins = [line for line in Mail.lines if line.startswith(b"AUTH")]
    if is_trusted:
        assert (answer, logins) == ("", [b"AUTH PLAIN " + b64encode(b"\0us\0s3cret") + b"\r\n"])
        assert [line for line in Mail.lines if line.startswith(b"Subject")]
    else:
        assert (answer.partition(":")[0], logins) == ("SSLCertVerificationError", [])


class Clock:
    now = 0.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(notices.runtime, "monotonic", lambda: clock.now)
    monkeypatch.setattr(notices, "_RETRY_SECONDS", 0.0)
    return clock


def notifier_of(found: Callable[[float], Mapping[str, str]], send: Callable[[Mapping[str, Any]], str]) -> Notifier:
    background = cast(Background, SimpleNamespace(start=lambda work, name: asyncio.create_task(work)))
    return Notifier(found, send, {}, background)


async def test_a_trouble_is_told_once_and_again_when_it_is_over_and_not_too_often(clock: Clock) -> None:
    told: list[tuple[str, str]] = []
    found: dict[str, str] = {}
    refusals = [True, True]

    def send(said: Mapping[str, Any]) -> str:
        if refusals:
            refusals.pop()
            return "away"
        told.append((said["trouble"], said["event"]))
        return ""

    notifier = notifier_of(lambda _now: found, send)
    for second in range(0, 2_000, 5):
        clock.now = 1_000.0 + second
        found.clear()
        if 100 <= second < 200 or (second >= 300 and second % 10):  # it comes and goes
            found["memory"] = "full"
        notifier.look()
        if notifier._sending is not None:
            await notifier._sending
    notifier.close()

    assert told[:2] == [("memory", "begins"), ("memory", "is over")]
    assert told[2:] == told[:2] * 3


async def test_no_stop_waits_for_a_receiver_that_says_nothing() -> None:
    asked, may_answer, has_answered = threading.Event(), threading.Event(), threading.Event()

    def send(_said: Mapping[str, Any]) -> str:
        asked.set()
        may_answer.wait(60)
        has_answered.set()
        return ""

    notifier = notifier_of(lambda _now: {"memory": "full"}, send)
    notifier.look()
    while not asked.is_set():
        await asyncio.sleep(0.01)
    notifier.close()

    assert not has_answered.is_set()
    may_answer.set()
    assert has_answered.wait(60)


async def test_the_last_attempt_holds_no_other_notice_up(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said at once that the notice was not sent, and the next one is."""
    monkeypatch.setattr(notices, "_RETRY_SECONDS", 10.0)
    paused: list[float] = []

    async def sleep(seconds: float) -> None:
        paused.append(seconds)

    notifier = notifier_of(lambda _now: {"memory": "full"}, lambda _said: "away")
    monkeypatch.setattr(notices.asyncio, "sleep", sleep)
    clock.now = 1_000.0
    notifier.look()
    assert notifier._sending is not None
    await notifier._sending

    assert paused == [10.0, 20.0, 40.0, 80.0, 160.0]


def parts() -> Any:
    stats: dict[str, int] = {}
    ledger = SimpleNamespace(outcomes={}, in_flight=0, held=[1], partitions=lambda: ledger.held)
    return SimpleNamespace(
        config=SimpleNamespace(memory_soft_bytes=0),
        sinks=[SimpleNamespace(sink=SimpleNamespace(name="local"), available=True) for _ in ("results", "items")],
        commits=SimpleNamespace(sink_away=""),
        intake=SimpleNamespace(is_away=False),
        completion=SimpleNamespace(ledger=ledger),
        watched=SimpleNamespace(
            crawler=SimpleNamespace(stats=SimpleNamespace(get_stats=lambda: stats)),
            counted=SimpleNamespace(pages=SimpleNamespace(items=0)),
            pauses=SimpleNamespace(now=lambda: SimpleNamespace(said="")),
        ),
        stats=stats,
    )


def test_what_is_a_trouble() -> None:
    crawled, used = parts(), [0]
    troubles = Troubles(cast(Parts, crawled), 60, lambda: used[0])
    assert troubles.now(0) == {}
    assert list(troubles.now(59)) == []
    assert list(troubles.now(60)) == ["no items"]
    crawled.watched.counted.pages.items = 1
    assert list(troubles.now(61)) == []
    crawled.completion.ledger.held = []
    assert list(troubles.now(62)) == []
    crawled.completion.ledger.held = [1]
    assert list(troubles.now(130)) == []  # for it had none before
    crawled.watched.counted.pages.items = 2
    crawled.completion.ledger.in_flight = 3
    crawled.sinks[0].available = False
    for now in (200, 799):
        crawled.watched.counted.pages.items += 1
        assert list(troubles.now(now)) == []
    assert list(troubles.now(800)) == ["sink local"]  # which says why the crawl stands
    crawled.sinks[0].available = True
    crawled.commits.sink_away = "kafka"  # where results wait for a transaction
    crawled.watched.counted.pages.items += 1
    assert list(troubles.now(800)) == []
    crawled.watched.counted.pages.items += 1
    assert list(troubles.now(1_400)) == ["sink kafka"]
    crawled.commits.sink_away = ""
    crawled.watched.counted.pages.items += 1
    for now, names in ((1_401, []), (2_000, []), (2_001, ["stands"])):
        crawled.watched.counted.pages.items += 1
        assert list(troubles.now(now)) == names
    crawled.stats["downloader/response_count"] = 1
    assert list(troubles.now(2_002)) == []
    crawled.intake.is_away = True
    crawled.config.memory_soft_bytes = 100
    for used[0], is_full in ((100, False), (101, True), (95, True), (90, False), (95, False)):
        assert ("memory" in troubles.now(2_003)) is is_full
    crawled.watched.counted.pages.items += 1
    assert "seed log" in troubles.now(2_700)
