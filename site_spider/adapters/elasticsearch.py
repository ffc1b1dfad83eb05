"""Writes documents to an Elasticsearch index, by bulk partial updates with upsert.

Answers are told apart here. A record is refused only for its own sake: a status of 400
or 413 whose error speaks of the document. Everything else (overload, a version
conflict, a closed index, missing rights) may pass later. When the server refuses a whole
request, because of one line in it or for its size, the halves are written by themselves
until the guilty record stands alone.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from elastic_transport import TlsError
from elasticsearch import (
    ApiError,
    AsyncElasticsearch,
    AuthenticationException,
    TransportError,
    UnsupportedProductError,
)

from site_spider.adapters.elasticsearch_node import PiecewiseNode
from site_spider.adapters.elasticsearch_options import HOSTS, ElasticsearchOptions, index_name
from site_spider.core.document import encode
from site_spider.core.options import SettingsView
from site_spider.core.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkRejected, SinkUnavailable

logger = logging.getLogger(__name__)

TEMPLATES = Path(__file__).resolve().parents[2] / "resources" / "elasticsearch"
HEALTH_WAIT = "5s"  # of the server, for its shards
SHARD_WAIT = "20s"  # of the server, for a shard to write to; shorter than the request timeout
OPEN_TIMEOUT_SECONDS = 10.0
RETRY_ON_CONFLICT = 3
REMEDY_CREDENTIALS = 'as {"basic_auth": ["name", "password"]} or {"api_key": "..."}, what it accepts'
REMEDY_TLS = 'ca_certs, as {"ca_certs": "/path/ca.pem"}, to the CA that signed its certificate'
ENCODE_PER_TURN_BYTES = 1_000_000  # then the event loop gets its turn: about 5 ms

_REFUSING = {400, 413}
_NOT_THE_RECORDS_FAULT = {
    "index_closed_exception",
    "index_not_found_exception",
    "validation_exception",  # the cluster has no room for one more shard
    "cluster_block_exception",
    "security_exception",
}


class ElasticsearchSink:
    """One index; its template is installed at open, so that the first write creates it well."""

    name = "elasticsearch"

    def __init__(self, options: ElasticsearchOptions, index: str, template: Path) -> None:
        self._options = options
        self._index = index
        self._template_name = f"site_spider-{index}"
        self._template = _template(template, index)
        self._client: AsyncElasticsearch | None = None
        self._new_client()  # shows at once whether the options are right

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The sink of results, SITE_RESULTS_INDEX. Raises ConfigError."""
        index = index_name(settings, "SITE_RESULTS_INDEX")
        return cls(ElasticsearchOptions.from_settings(settings), index, TEMPLATES / "results-template.json")

    @classmethod
    def for_statistics(cls, settings: SettingsView) -> Self:
        """The sink of statistics, SITE_STATS_INDEX. Raises ConfigError."""
        index = index_name(settings, "SITE_STATS_INDEX")
        return cls(ElasticsearchOptions.from_settings(settings), index, TEMPLATES / "stats-template.json")

    async def open(self) -> None:
        """Wait until the server is ready and install the template. Raises SinkUnavailable, ConfigError."""
        await self.close()
        self._client = self._new_client()
        try:
            await self._prepare(self._client.options(request_timeout=OPEN_TIMEOUT_SECONDS))
        except BaseException:
            await self.close()
            raise

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Write the records in as few requests as the server takes. Raises SinkUnavailable."""
        lines, verdicts = await self._encoded(records)
        waiting = [number for number, verdict in enumerate(verdicts) if verdict is None]
        answers = await self._bulk([lines[number] for number in waiting])
        for number, answer in zip(waiting, answers, strict=True):
            verdicts[number] = answer
        return [verdict for verdict in verdicts if verdict is not None]

    async def close(self) -> None:
        """Close the connections. Never raises."""
        client, self._client = self._client, None
        if client is not None:
            try:
                await client.close()
            except Exception:  # nobody could do anything about it
                logger.exception("The connections to %s could not be closed.", self._options.address)

    # --- Opening ---

    def _new_client(self) -> AsyncElasticsearch:
        return self._options.client(AsyncElasticsearch, node_class=PiecewiseNode)

    async def _prepare(self, client: AsyncElasticsearch) -> None:
        try:
            await self._check_health(client)
            await self._install_template(client)
        except UnsupportedProductError as error:
            raise ConfigError(f"{HOSTS} is {self._options.address!r}: that is not Elasticsearch.") from error
        except TlsError as error:
            raise self._options.refused(_explained(error), REMEDY_TLS) from error
        except AuthenticationException as error:
            raise self._options.refused(_explained(error), REMEDY_CREDENTIALS) from error
        except (ApiError, TransportError) as error:
            raise self._options.unavailable(_explained(error)) from error

    async def _check_health(self, client: AsyncElasticsearch) -> None:
        # GET / and HEAD / are refused by slim distributions and by some proxies.
        try:
            await client.cluster.health(wait_for_status="yellow", timeout=HEALTH_WAIT)
        except ApiError as error:
            if error.status_code not in (403, 408):  # 408: some shards are not ready, and need not be ours
                raise
            if error.status_code == 403:
                logger.warning("%s does not let us ask for its health: %s", HOSTS, _explained(error))

    async def _install_template(self, client: AsyncElasticsearch) -> None:
        name, version = self._template_name, self._template["version"]
        try:
            found = await client.options(ignore_status=404).indices.get_index_template(name=name)
            if any(_version(item) >= version for item in found.get("index_templates", [])):
                return  # somebody may have changed it to his needs
            await client.indices.put_index_template(name=name, **self._template)
        except ApiError as error:
            if error.status_code not in (400, 403):
                raise
            logger.warning(
                "The index template %s could not be installed, so a new index gets guessed mappings: %s",
                name,
                _explained(error),
            )

    # --- Writing ---

    async def _encoded(self, records: Sequence[Record]) -> tuple[list[bytes], list[Verdict | None]]:
        lines: list[bytes] = []
        verdicts: list[Verdict | None] = []
        since_turn = 0
        for record in records:
            try:
                line = _update(record)
            except SinkRejected as error:
                lines.append(b"")
                verdicts.append(Verdict(Answer.REJECTED, str(error)))
                continue
            lines.append(line)
            verdicts.append(None)
            since_turn += len(line)
            if since_turn >= ENCODE_PER_TURN_BYTES:
                since_turn = 0
                await asyncio.sleep(0)
        return lines, verdicts

    async def _bulk(self, lines: Sequence[bytes]) -> list[Verdict]:
        if not lines:
            return []
        try:
            return await self._request(lines)
        except ApiError as error:
            if not _refuses_content(error):
                raise self._options.unavailable(_explained(error)) from error
            if len(lines) == 1:
                return [Verdict(Answer.REJECTED, _explained(error))]
        except TransportError as error:
            raise self._options.unavailable(_explained(error)) from error
        middle = len(lines) // 2
        return [*await self._bulk(lines[:middle]), *await self._bulk(lines[middle:])]

    async def _request(self, lines: Sequence[Any]) -> list[Verdict]:
        if self._client is None:
            raise SinkUnavailable("The Elasticsearch sink is not open.")
        answer = await self._client.bulk(
            index=self._index,
            operations=lines,
            timeout=SHARD_WAIT,
            filter_path="errors,items.*.status,items.*.error",
        )
        items = [item["update"] for item in answer.get("items", [])]
        if len(items) != len(lines):
            raise self._options.unavailable(f"{len(items)} answers to {len(lines)} records.")
        return [verdict_of(item) for item in items]


def verdict_of(item: Mapping[str, Any]) -> Verdict:
    """What the answer to one item of a bulk request means."""
    status = item["status"]
    if 200 <= status < 300:
        return ACKNOWLEDGED
    error = item.get("error") or {}
    answer = Answer.REJECTED if _is_own_fault(status, error) else Answer.RETRY
    return Verdict(answer, _reason(status, error))


def _reason(status: int, error: Mapping[str, Any]) -> str:
    causes: list[str] = []
    cause: Mapping[str, Any] | None = error
    while cause:
        causes.append(f"{cause.get('type')}: {cause.get('reason')}")
        cause = cause.get("caused_by")
    return f"HTTP {status} {', caused by '.join(causes)}"


def _explained(error: ApiError | TransportError) -> str:
    if not isinstance(error, ApiError):
        # the client drops the error of the network that its own stands for
        cause = error.__context__
        return f"{type(error).__name__}: {error}" + (f" ({cause or type(cause).__name__})" if cause else "")
    return _reason(error.status_code, _words(error) or {"type": "proxy?", "reason": error.message})


def _refuses_content(error: ApiError) -> bool:
    """Whether a request was refused for what is in it; a 400 without Elasticsearch's words is a proxy's."""
    if error.status_code == 413:
        return True
    words = _words(error)
    return bool(words) and _is_own_fault(error.status_code, words)


def _words(error: ApiError) -> Mapping[str, Any]:
    """Elasticsearch's own description of the error; empty if somebody else answered."""
    words = error.body.get("error") if isinstance(error.body, Mapping) else None
    return words if isinstance(words, Mapping) else {}


def _is_own_fault(status: int, error: Mapping[str, Any]) -> bool:
    if status not in _REFUSING or error.get("type") in _NOT_THE_RECORDS_FAULT:
        return False
    return "no write index" not in str(error.get("reason"))  # an alias that is not ready to be written to


def _update(record: Record) -> bytes:
    """The two lines of one update. Raises SinkRejected."""
    action = encode({"update": {"_id": record.key, "retry_on_conflict": RETRY_ON_CONFLICT}})
    return b'%b\n{"doc_as_upsert":true,"doc":%b}\n' % (action, encode(record.document))


def _template(path: Path, index: str) -> dict[str, Any]:
    template: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    # Two templates of one priority may not share a name. The longer name is the more
    # specific one, and priorities that people choose themselves (100 and up) win over it.
    return {
        "index_patterns": [index, f"{index}-*"],
        "priority": min(len(index), 99),
        "version": template["version"],
        "meta": template["_meta"],
        "template": template["template"],
    }


def _version(found: Mapping[str, Any]) -> int:
    return int(found["index_template"].get("version") or 0)
