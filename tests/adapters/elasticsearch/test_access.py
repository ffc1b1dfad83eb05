"""Credentials, certificates and rights, against a loopback server that looks at nothing else.

tests/acceptance/test_secured.py has the real one. The slim distribution of the tests makes no API keys: its
security index needs a filter, pattern_capture, that is not in it.
"""

from __future__ import annotations

import asyncio
import json
import threading
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from site_spider.adapters import files as replaced_files
from site_spider.adapters.elasticsearch.client import explained
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.contracts.sink import Answer
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.results.delivery import Delivery
from tests.adapters.elasticsearch.played import RECORDS, good, settings_for, to, write_to
from tests.adapters.raw_server import Asked, Said, answering, said
from tests.authority import Authority, TlsFront
from tests.contracts.trials import answers, written

BASIC = "Basic " + b64encode(b"crawler:opensesame").decode()
API_KEY = "ApiKey " + b64encode(b"id:secret").decode()
LONG_WAIT_SECONDS = 600.0  # a mistake that is taken for an outage is waited for so long


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ours", "ours")


def refused(kind: str, status: int) -> bytes:
    return said({"error": {"type": kind, "reason": "why"}, "status": status}, status=status)


@contextmanager
def server(authority: Authority, credentials: str) -> Iterator[str]:
    """As much of Elasticsearch as a sink needs, for whoever sends these credentials; over TLS."""

    def answer(asked: Asked) -> Said:
        is_known = asked.headers.get("authorization") == credentials
        return good(asked) if is_known else refused("security_exception", 401)

    with answering(answer) as address, TlsFront(urlsplit(address).port or 0, authority) as front:
        yield f"https://127.0.0.1:{front.port}"


def sink(address: str, files: Path | None, **options: Any) -> ElasticsearchSink:
    """With the certificates of a folder, if it has any."""
    if files is not None:
        names = {"ca_certs": "ca.pem", "client_cert": "client.pem", "client_key": "client.key"}
        options |= {key: str(files / name) for key, name in names.items()}
    return ElasticsearchSink.from_settings({**settings_for(address), "SITE_ELASTICSEARCH_OPTIONS": json.dumps(options)})


async def complaint(made: ElasticsearchSink) -> str:
    """Of the start, which has to end at once."""
    with pytest.raises(ConfigError) as caught:
        async with asyncio.timeout(LONG_WAIT_SECONDS / 2):
            await Delivery(made).open(LONG_WAIT_SECONDS)
    return str(caught.value)


@pytest.mark.parametrize(
    ("expected", "options"),
    [
        (BASIC, {"basic_auth": ["crawler", "opensesame"]}),
        (API_KEY, {"api_key": ["id", "secret"]}),
        (API_KEY, {"api_key": API_KEY.removeprefix("ApiKey ")}),
    ],
)
def test_who_has_the_credentials_and_the_ca_gets_in(
    authority: Authority, expected: str, options: dict[str, Any]
) -> None:
    """The header is the one that Elasticsearch documents; the certificate is checked against our own CA."""
    with server(authority, expected) as address:
        assert answers(written(sink(address, authority.folder, **options), RECORDS)) == [Answer.ACKNOWLEDGED] * 3


@pytest.mark.parametrize("options", [{}, {"basic_auth": ["crawler", "wrong"]}, {"api_key": ["id", "wrong"]}])
async def test_wrong_credentials_end_the_start_at_once(authority: Authority, options: dict[str, Any]) -> None:
    """Waiting would not help; the message names the setting and what to put there."""
    with server(authority, BASIC) as address:
        told = await complaint(sink(address, authority.folder, **options))
        for words in (address, "HTTP 401", "SITE_ELASTICSEARCH_OPTIONS", "basic_auth", "api_key"):
            assert words in told
        assert "wrong" not in told


async def test_a_certificate_of_an_unknown_ca_ends_the_start_at_once(authority: Authority, tmp_path: Path) -> None:
    """Neither the system's CAs nor another one of our own have signed it; the message names ca_certs."""
    with server(authority, BASIC) as address:
        for files in (None, Authority(tmp_path / "other", "other").folder):
            told = await complaint(sink(address, files))
            for words in (address, "certificate", "SITE_ELASTICSEARCH_OPTIONS", "ca_certs"):
                assert words in told
    assert explained(OSError("[SSL: WRONG_VERSION_NUMBER]")).endswith("; is it http://?")


async def test_a_right_without_which_nothing_can_be_written_ends_the_start() -> None:
    lacking = said({"index": {"results": {"create_index": True, "read": False, "write": False}}})
    with answering(to("_has_privileges", lacking)) as address:
        assert "no right to read and write in the index results" in await complaint(sink(address, None))


def test_a_template_that_may_not_be_installed_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Who may only write to the index can do so."""
    verdicts = write_to(to("_index_template", refused("security_exception", 403)))
    assert answers(verdicts) == [Answer.ACKNOWLEDGED] * 3
    told = [item.getMessage() for item in caplog.records if item.levelname == "WARNING"]
    assert ["template" in line and "security_exception" in line for line in told] == [True]
    assert "SITE_ELASTICSEARCH_OPTIONS" in told[0]


# --- Certificates that are replaced on disk: the sink takes them without a restart


@pytest.fixture
def authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Authority, Authority]:
    """The one before, and the one after."""
    monkeypatch.setattr(replaced_files, "LOOK_SECONDS", 0.0)
    return Authority(tmp_path / "before", "before"), Authority(tmp_path / "after", "after")


@pytest.fixture
def front(authorities: tuple[Authority, Authority]) -> Iterator[TlsFront]:
    with answering(good) as address, TlsFront(urlsplit(address).port or 0, authorities[0]) as front:
        yield front


async def writes(made: ElasticsearchSink) -> bool:
    try:
        return {verdict.answer for verdict in await made.write(RECORDS)} == {Answer.ACKNOWLEDGED}
    except SinkUnavailable:
        return False


async def test_a_sink_takes_a_new_authority_and_a_new_certificate_of_its_own(
    authorities: tuple[Authority, Authority], front: TlsFront, tmp_path: Path
) -> None:
    """And as long as only one file of a pair is there, or the server takes no others, it keeps those before."""
    before, after = authorities
    files = tmp_path / "client"
    before.give_to_client(files)

    made = sink(f"https://127.0.0.1:{front.port}", files)
    await made.open()
    assert await writes(made)
    for names in (["client.pem"], ["client.pem", "client.key"], ["ca.pem"]):
        after.give_to_client(files, *names)
        assert await writes(made)
    front.use(after)
    assert await writes(made) or await writes(made)
    await made.close()


async def test_what_is_under_way_ends_on_the_connection_where_it_began(
    authorities: tuple[Authority, Authority], tmp_path: Path
) -> None:
    before, _ = authorities
    files = tmp_path / "client"
    before.give_to_client(files)
    has_come, may_answer = threading.Event(), threading.Event()

    def slow(asked: Asked) -> Said:
        if "_bulk" in asked.path and not has_come.is_set():
            has_come.set()
            may_answer.wait(300)
        return good(asked)

    with answering(slow) as address, TlsFront(urlsplit(address).port or 0, before) as front:
        made = sink(f"https://127.0.0.1:{front.port}", files)
        await made.open()
        under_way = asyncio.create_task(writes(made))
        await asyncio.to_thread(has_come.wait, 300)
        before.give_to_client(files)  # the same, but other files
        assert all(await asyncio.gather(*(writes(made) for _ in range(8))))
        may_answer.set()
        assert await under_way
        await made.close()


@pytest.mark.parametrize("is_secured", [False, True])
async def test_a_sink_that_closes_waits_for_no_answer(authority: Authority, *, is_secured: bool) -> None:
    """A stop has to come to an end, though the server may answer within the next 30 s."""
    has_come, may_answer = threading.Semaphore(0), threading.Event()

    def silent(asked: Asked) -> Said:
        if "_bulk" in asked.path:
            has_come.release()
            may_answer.wait(300)
        return good(asked)

    with answering(silent) as address, TlsFront(urlsplit(address).port or 0, authority) as front:
        made = sink(f"https://127.0.0.1:{front.port}", authority.folder) if is_secured else sink(address, None)
        await made.open()
        under_way = [asyncio.create_task(writes(made)) for _ in range(2)]
        for _ in under_way:
            await asyncio.to_thread(has_come.acquire, timeout=300)
        await made.close()
        assert await asyncio.gather(*under_way) == [False, False]
        may_answer.set()
