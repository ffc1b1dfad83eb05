"""Certificates that are replaced on disk: the sink takes them without a restart."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from site_spider.adapters import files as replaced_files
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.contracts.sink import Answer
from site_spider.errors import SinkUnavailable
from tests.adapters.elasticsearch.odd_answers import RECORDS, good, settings_for
from tests.adapters.raw_server import Asked, Said, answering
from tests.authority import Authority, TlsFront


@pytest.fixture
def authorities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Authority, Authority]:
    """The one before, and the one after."""
    monkeypatch.setattr(replaced_files, "LOOK_SECONDS", 0.0)
    return Authority(tmp_path / "before", "before"), Authority(tmp_path / "after", "after")


@pytest.fixture
def front(authorities: tuple[Authority, Authority]) -> Iterator[TlsFront]:
    with answering(good) as address, TlsFront(urlsplit(address).port or 0, authorities[0]) as front:
        yield front


def sink_for(front: TlsFront, files: Path) -> ElasticsearchSink:
    names = {"ca_certs": "ca.pem", "client_cert": "client.pem", "client_key": "client.key"}
    settings = settings_for(f"https://127.0.0.1:{front.port}")
    settings["SITE_ELASTICSEARCH_OPTIONS"] = json.dumps({key: str(files / n) for key, n in names.items()})
    return ElasticsearchSink.from_settings(settings)


async def writes(sink: ElasticsearchSink) -> bool:
    try:
        return {verdict.answer for verdict in await sink.write(RECORDS)} == {Answer.ACKNOWLEDGED}
    except SinkUnavailable:
        return False


async def test_a_sink_takes_a_new_authority_and_a_new_certificate_of_its_own(
    authorities: tuple[Authority, Authority], front: TlsFront, tmp_path: Path
) -> None:
    """And as long as only one file of a pair is there, it keeps those before."""
    before, after = authorities
    files = tmp_path / "client"
    before.give_to_client(files)

    sink = sink_for(front, files)
    await sink.open()
    assert await writes(sink)
    after.give_to_client(files, "client.pem")
    assert await writes(sink)
    after.give_to_client(files)
    front.use(after)
    assert await writes(sink) or await writes(sink)
    await sink.close()


def test_what_is_under_way_ends_on_the_connection_where_it_began(
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

    async def scenario(front: TlsFront) -> None:
        sink = sink_for(front, files)
        await sink.open()
        under_way = asyncio.create_task(writes(sink))
        await asyncio.to_thread(has_come.wait, 10)
        before.give_to_client(files)  # the same, but other files
        assert all(await asyncio.gather(*(writes(sink) for _ in range(8))))
        may_answer.set()
        assert await under_way
        await sink.close()

    with answering(slow) as address, TlsFront(urlsplit(address).port or 0, before) as front:
        asyncio.run(scenario(front))
