"""A server that is overloaded easily, asks for passwords, and is killed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from site_spider.adapters.elasticsearch.results import ElasticsearchResults
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkUnavailable
from site_spider.results.batch import BatchLimits
from site_spider.results.delivery import Delivery
from tests.adapters.elasticsearch.sinks import record, settings_for, write
from tests.contracts.trials import (
    answers,
    outlast_an_outage,
)
from tests.real_servers import ROOT, servers, variable

# Anybody may ask for the health, which `servers.sh` does; for more, names and passwords are needed.
RESTRICTED = """
indexing_pressure.memory.limit: 200kb
xpack.security.enabled: true
xpack.security.authc.anonymous: {username: anybody, roles: anybody, authz_exception: true}
"""
RIGHTS = {
    "users": "admin:admin\ncrawler:opensesame\n",
    "users_roles": "superuser:admin\nwriter:crawler\n",
    "roles.yml": """
anybody:
  cluster: [monitor]
writer:
  indices:
    - names: ["mine-*"]
      privileges: [write, create_index, read]
""",
}
QUICK_START = "-XX:TieredStopAtLevel=1"


@pytest.fixture(scope="module")
def own_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("elasticsearch")
    template = folder / "resources" / "servers" / "elasticsearch" / "elasticsearch.yml"
    # A line can be added to the server's configuration but not changed, so this is a copy without one.
    shutil.copytree(ROOT / "task_shell", folder / "task_shell")
    shutil.copytree(ROOT / "resources" / "servers", folder / "resources" / "servers")
    template.write_text(template.read_text().replace("xpack.security.enabled: @SECURED@", ""))
    start(folder)
    yield folder
    servers(folder, "kill", "elasticsearch")


def start(folder: Path) -> None:
    conf = folder / "elasticsearch" / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    for name, text in RIGHTS.items():
        (conf / name).write_text(text)
    servers(
        folder,
        "start",
        "elasticsearch",
        script=folder / "task_shell" / "servers.sh",
        SITE_SERVERS_ELASTICSEARCH_YML=RESTRICTED,
        SITE_SERVERS_ELASTICSEARCH_JAVA_OPTS=QUICK_START,
    )


@pytest.fixture
def own_settings(own_server: Path) -> dict[str, Any]:
    hosts = variable(own_server, "SITE_ELASTICSEARCH_HOSTS", "elasticsearch")
    return settings_for(hosts, SITE_ELASTICSEARCH_OPTIONS='{"basic_auth": ["admin", "admin"]}')


@pytest.mark.servers
def test_wrong_credentials_are_a_wrong_setting(own_settings: dict[str, Any]) -> None:
    """Waiting would not help, so it says which setting to mend."""
    own_settings["SITE_ELASTICSEARCH_OPTIONS"] = '{"basic_auth": ["crawler", "wrong"]}'
    with pytest.raises(ConfigError, match="SITE_ELASTICSEARCH_OPTIONS"):
        write(ElasticsearchSink.from_settings(own_settings), [])


@pytest.mark.servers
def test_the_least_rights_are_enough(own_settings: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    """Who may only write to the index can do so; what else was forbidden is said."""
    own_settings["SITE_RESULTS_INDEX"] = "mine-1"
    own_settings["SITE_ELASTICSEARCH_OPTIONS"] = '{"basic_auth": ["crawler", "opensesame"]}'
    sink = ElasticsearchSink.from_settings(own_settings)
    assert answers(write(sink, [record("a", {"status": 200})])) == [Answer.ACKNOWLEDGED]
    told = [item.getMessage() for item in caplog.records if item.levelname == "WARNING"]
    assert ["template" in line and "security_exception" in line for line in told] == [True]
    reader = ElasticsearchResults.from_settings(own_settings)
    assert reader.get("a") == {"url_id": "a", "status": 200}
    reader.close()

    forbidden = ElasticsearchSink.from_settings({**own_settings, "SITE_RESULTS_INDEX": "not-mine"})
    with pytest.raises(ConfigError, match=r"no right to .*write in the index not-mine"):
        write(forbidden, [record("a", {"status": 200})])


@pytest.mark.servers
def test_a_busy_server_refuses_nothing_for_good(own_settings: dict[str, Any]) -> None:
    """Real 429s: everything is stored in the end, nothing rejected."""
    seen: list[str] = []

    class Watched(ElasticsearchSink):
        async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
            try:
                verdicts = await super().write(records)
            except SinkUnavailable as error:
                seen.append(str(error))
                raise
            seen.extend(verdict.reason for verdict in verdicts if verdict.answer is Answer.RETRY)
            return verdicts

    async def scenario() -> list[Verdict]:
        verdicts: list[Verdict] = []
        delivery = Delivery(
            Watched.from_settings(own_settings), limits=BatchLimits(size_bytes=400_000, count=50)
        )
        await delivery.open(300)
        for number in range(100):
            delivery.submit(Record(str(number), {"body": "word " * 1000}, 5000), verdicts.append)
        assert await delivery.close(300) == 0
        return verdicts

    verdicts = asyncio.run(scenario())
    assert answers(verdicts) == [Answer.ACKNOWLEDGED] * 100
    assert any("HTTP 429" in reason for reason in seen)
    reader = ElasticsearchResults.from_settings(own_settings)
    assert reader.count() == 100
    reader.close()


@pytest.mark.servers
def test_nothing_is_lost_when_the_server_is_killed(own_server: Path, own_settings: dict[str, Any]) -> None:
    """Killed by -9 in mid-stream and started again: every record is acknowledged once and is there."""
    sink = ElasticsearchSink.from_settings(own_settings)
    verdicts, waiting = asyncio.run(
        outlast_an_outage(
            sink,
            lambda: servers(own_server, "kill", "elasticsearch"),
            lambda: start(own_server),
            3000,
            make=lambda number: Record(str(number), {"status": 200, "n": number}, 10_000),
        )
    )
    assert answers(verdicts) == [Answer.ACKNOWLEDGED] * 3000
    assert waiting > 0
    reader = ElasticsearchResults.from_settings(own_settings)
    assert {document["n"] for document in reader.search(limit=None)} == set(range(3000))
    reader.close()
