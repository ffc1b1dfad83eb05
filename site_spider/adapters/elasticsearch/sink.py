"""Writes documents to an Elasticsearch index, by bulk partial updates with upsert.

When the server refuses a whole request, because of one line in it or for its size, the halves
are written by themselves until the guilty record stands alone. One that is refused alone for its size is
written once more after something smaller has passed, see adapters.elasticsearch.sizes.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
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

from site_spider.adapters.elasticsearch.answer import (
    Action,
    UnexpectedResponse,
    explained,
    refuses_content,
    shown,
    verdicts_of,
    version_of,
)
from site_spider.adapters.elasticsearch.mapping import closing_changes
from site_spider.adapters.elasticsearch.node import PiecewiseNode
from site_spider.adapters.elasticsearch.options import HOSTS, ElasticsearchOptions, index_name, items_index
from site_spider.adapters.elasticsearch.sizes import Sizes
from site_spider.adapters.elasticsearch.stored import over_stored
from site_spider.adapters.elasticsearch.updates import PROBE, TooLarge, Update, update_of
from site_spider.contracts.sink import Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkRejected, SinkUnavailable
from site_spider.options import SettingsView
from site_spider.resources import resource

logger = logging.getLogger(__name__)

TEMPLATES = resource("elasticsearch")
META = "meta"  # the field for what producers send along
HEALTH_WAIT = "5s"  # of the server, for its shards
SHARD_WAIT = "20s"  # of the server, for a shard to write to; shorter than the request timeout
OPEN_TIMEOUT_SECONDS = 10.0
TOO_LARGE = 413
REMEDY_CREDENTIALS = 'as {"basic_auth": ["name", "password"]} or {"api_key": "..."}, what it accepts'
REMEDY_TLS = 'ca_certs, as {"ca_certs": "/path/ca.pem"}, to the CA that signed its certificate'
ENCODE_PER_TURN_BYTES = 1_000_000  # then the event loop gets its turn: about 5 ms


class ElasticsearchSink:
    """One index; its template is installed at open, so that the first write creates it well."""

    name = "elasticsearch"

    def __init__(
        self,
        options: ElasticsearchOptions,
        index: str,
        template: Path,
        action: Action = "update",
        *,
        is_shared: bool = True,
    ) -> None:
        self._is_shared = is_shared  # producers have fields of their own in its documents
        self._options = options
        self._action = action
        self._index = index
        self._template_name = f"site_spider-{index}"
        self._template = _template(template, index)
        self._sizes = Sizes()
        self._client: AsyncElasticsearch | None = None
        self._new_client()  # shows at once whether the options are right

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        """The sink of results, SITE_RESULTS_INDEX. Raises ConfigError."""
        index = index_name(settings, "SITE_RESULTS_INDEX")
        return cls(ElasticsearchOptions.from_settings(settings), index, TEMPLATES / "results-template.json")

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        """The sink of items, SITE_ITEMS_INDEX. Raises ConfigError."""
        index = items_index(settings)
        options = ElasticsearchOptions.from_settings(settings)
        return cls(options, index, TEMPLATES / "items-template.json", "index", is_shared=False)

    @classmethod
    def for_statistics(cls, settings: SettingsView) -> Self:
        """The sink of statistics, SITE_STATS_INDEX. Raises ConfigError."""
        index = index_name(settings, "SITE_STATS_INDEX")
        options = ElasticsearchOptions.from_settings(settings)
        return cls(options, index, TEMPLATES / "stats-template.json", is_shared=False)

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
        encoded = await self._encoded(await self._over_stored(records))
        answers = await self._bulk([one for one in encoded if isinstance(one, Update)])
        verdicts = iter([await self._judged(one) if isinstance(one, TooLarge) else one for one in answers])
        return [next(verdicts) if isinstance(one, Update) else one for one in encoded]

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
            await self._close_meta(client)
        except UnsupportedProductError as error:
            raise ConfigError(f"{HOSTS} is {self._options.address!r}: that is not Elasticsearch.") from error
        except TlsError as error:
            raise self._options.refused(explained(error), REMEDY_TLS) from error
        except AuthenticationException as error:
            raise self._options.refused(explained(error), REMEDY_CREDENTIALS) from error
        except (ApiError, TransportError, RecursionError, UnexpectedResponse) as error:
            raise self._options.unavailable(explained(error)) from error

    async def _check_health(self, client: AsyncElasticsearch) -> None:
        # GET / and HEAD / are refused by slim distributions and by some proxies.
        try:
            await client.cluster.health(wait_for_status="yellow", timeout=HEALTH_WAIT)
        except ApiError as error:
            if error.status_code not in (403, 408):  # 408: some shards are not ready, and need not be ours
                raise
            if error.status_code == 403:
                logger.warning("%s refuses the request for its health: %s", HOSTS, explained(error))

    async def _install_template(self, client: AsyncElasticsearch) -> None:
        name, version = self._template_name, self._template["version"]
        try:
            found = await client.options(ignore_status=404).indices.get_index_template(name=name)
            if any(version_of(one) >= version for one in _templates(found.body)):
                return  # somebody may have changed it to his needs
            await client.indices.put_index_template(name=name, **self._template)
        except ApiError as error:
            if error.status_code not in (400, 403):
                raise
            logger.warning(
                "The index template %s could not be installed, so a new index gets guessed mappings: %s",
                name,
                explained(error),
            )

    async def _close_meta(self, client: AsyncElasticsearch) -> None:
        wanted = self._template["template"]["mappings"]["properties"].get(META)
        if wanted is None:
            return
        try:
            found = await client.options(ignore_status=404).indices.get_mapping(index=self._index)
            for index, change in closing_changes(found.body, META, wanted):
                await client.indices.put_mapping(index=index, properties=change)
                logger.info("Index %s makes no field of a new key in %s from now on.", shown(index), META)
        except ApiError as error:
            if error.status_code not in (400, 403):
                raise
            logger.info("New keys of %s in %s may become fields: %s", META, self._index, explained(error))

    # --- Writing ---

    async def _over_stored(self, records: Sequence[Record]) -> Sequence[Record]:
        if not self._is_shared or self._client is None:
            return records
        try:
            return await over_stored(self._client, self._index, records)
        except (ApiError, TransportError, RecursionError, UnexpectedResponse) as error:
            raise self._options.unavailable(explained(error)) from error

    async def _encoded(self, records: Sequence[Record]) -> list[Update | Verdict]:
        encoded: list[Update | Verdict] = []
        since_turn = 0
        for record in records:
            try:
                update = update_of(record, self._action)
            except SinkRejected as error:
                encoded.append(Verdict(Answer.REJECTED, str(error)))
                continue
            encoded.append(update)
            since_turn += len(update.lines)
            if since_turn >= ENCODE_PER_TURN_BYTES:
                since_turn = 0
                await asyncio.sleep(0)
        return encoded

    async def _bulk(self, updates: Sequence[Update]) -> list[Verdict | TooLarge]:
        if not updates:
            return []
        try:
            return [*await self._request(updates)]
        except ApiError as error:
            if not refuses_content(error):
                raise self._options.unavailable(explained(error)) from error
            if len(updates) == 1 and error.status_code == TOO_LARGE:
                return [TooLarge(updates[0], time.monotonic())]
            if len(updates) == 1:
                return [Verdict(Answer.REJECTED, explained(error))]
        except (TransportError, RecursionError, UnexpectedResponse) as error:
            raise self._options.unavailable(explained(error)) from error
        middle = len(updates) // 2
        return [*await self._bulk(updates[:middle]), *await self._bulk(updates[middle:])]

    async def _judged(self, refused: TooLarge) -> Verdict:
        """What becomes of a record that was refused alone for its size."""
        size_bytes = len(refused.update.lines)
        try:
            if self._sizes.is_largest(size_bytes, refused.at):
                if not self._sizes.has_passed_since(refused.at):
                    await self._request([PROBE], "update")
                return (await self._request([refused.update]))[0]
        except ApiError as error:
            if error.status_code == TOO_LARGE and self._sizes.has_passed_since(refused.at):
                return Verdict(Answer.REJECTED, explained(error))
        except (TransportError, RecursionError, UnexpectedResponse) as error:
            raise self._options.unavailable(explained(error)) from error
        return Verdict(Answer.RETRY, f"HTTP {TOO_LARGE} to a request of {size_bytes} bytes")

    async def _request(self, updates: Sequence[Update], action: Action | None = None) -> list[Verdict]:
        if self._client is None:
            raise SinkUnavailable("The Elasticsearch sink is not open.")
        lines: list[Any] = [update.lines for update in updates]  # which the client does not declare
        answer = await self._client.bulk(
            index=self._index,
            operations=lines,
            timeout=SHARD_WAIT,
            filter_path="errors,items.*._id,items.*.status,items.*.error",
        )
        verdicts = verdicts_of(answer.body, [update.key for update in updates], action or self._action)
        self._sizes.passed(sum(len(update.lines) for update in updates), time.monotonic())
        return verdicts


def _templates(answer: object) -> Sequence[object]:
    """Those that the server has. Raises UnexpectedResponse."""
    if not isinstance(answer, Mapping):
        raise UnexpectedResponse("the answer about an index template is no object", answer)
    found = answer.get("index_templates")
    return found if isinstance(found, list) else []


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
