"""Prepares an index before the first write: health of the server, template, mapping."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from elastic_transport import TlsError
from elasticsearch import (
    ApiError,
    AsyncElasticsearch,
    AuthenticationException,
    TransportError,
    UnsupportedProductError,
)

from site_spider.adapters.elasticsearch.answer import UnexpectedResponse, explained, shown
from site_spider.adapters.elasticsearch.mapping import added_fields, closing_changes, has_field
from site_spider.adapters.elasticsearch.options import HOSTS, ElasticsearchOptions
from site_spider.adapters.elasticsearch.template import TEXT, IndexTemplate, has_text, lacks_filters, newest
from site_spider.errors import ConfigError

logger = logging.getLogger(__name__)

META = "meta"  # the field for what producers send along
HEALTH_WAIT = "5s"  # of the server, for its shards
REMEDY_CREDENTIALS = 'as {"basic_auth": ["name", "password"]} or {"api_key": "..."}, what it accepts'
REMEDY_TLS = 'ca_certs, as {"ca_certs": "/path/ca.pem"}, to the CA that signed its certificate'

_RIGHTS = ("create_index", "read", "write")


def _rights_of(answer: Any, index: str) -> Mapping[str, Any]:
    """What the server says of one index; nothing where its answer is odd."""
    indices = answer.get("index") if isinstance(answer, Mapping) else None
    found = indices.get(index) if isinstance(indices, Mapping) else None
    return found if isinstance(found, Mapping) else {}


class IndexPreparation:
    """Of one index; its template is installed first, so that the first write creates it well."""

    def __init__(self, options: ElasticsearchOptions, index: str, template: IndexTemplate) -> None:
        self._options = options
        self._index = index
        self._template = template
        self._has_text = False

    async def run(self, client: AsyncElasticsearch) -> bool:
        """Whether results get a field for the text of pages. Raises SinkUnavailable, ConfigError."""
        with self._explaining():
            await self._check_health(client)
            await self._check_rights(client)
            self._has_text = await self._install_template(client)
            await self._adjust_index(client)
        return self._has_text

    async def check(self, client: AsyncElasticsearch) -> str:
        """What `run` would find; nothing is changed. Raises SinkUnavailable, ConfigError."""
        with self._explaining():
            await self._check_health(client)
            await self._check_rights(client)
            exists = bool(await client.indices.exists(index=self._index))
        there = "is there" if exists else "will be created"
        return f"{self._options.address} answers; index {self._index} {there}"

    @contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
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

    async def _check_rights(self, client: AsyncElasticsearch) -> None:
        """Raise ConfigError for rights without which no result could ever be written."""
        wanted = [{"names": [self._index], "privileges": list(_RIGHTS)}]
        try:
            answer = await client.security.has_privileges(index=wanted)
        except AuthenticationException:
            raise
        except ApiError:
            return  # a server without users, or one that does not say
        held = _rights_of(answer.body, self._index)
        if missing := [right for right in _RIGHTS if held.get(right) is False]:
            reason = f"the login has no right to {' and '.join(missing)} in the index {self._index}"
            raise self._options.refused(reason, "a login that has it, or grant it (docs/security.md)")

    async def _install_template(self, client: AsyncElasticsearch) -> bool:
        """Whether its indices have the field for texts."""
        name = self._template.name
        try:
            answer = await client.options(ignore_status=404).indices.get_index_template(name=name)
            found = newest(answer.body, self._template.version)
            # somebody may have changed one that is there to his needs
            return has_text(await self._put_template(client) if found is None else found)
        except ApiError as error:
            if error.status_code not in (400, 403):
                raise
            logger.warning(
                "The index template %s could not be installed, so a new index gets guessed mappings: %s",
                name,
                explained(error),
            )
            return False

    async def _put_template(self, client: AsyncElasticsearch) -> dict[str, Any]:
        """What was installed: all of it, or what a server can do that lacks the filters of texts."""
        name, content = self._template.name, self._template.content
        try:
            await client.indices.put_index_template(name=name, **content)
        except ApiError as error:
            if not lacks_filters(error):
                raise
            content = self._template.without_analysis()
            await client.indices.put_index_template(name=name, **content)
            logger.log(
                logging.INFO if has_text(content) else logging.DEBUG,  # said of results alone
                "%s is %s, which lacks the module analysis-common (html_strip, asciifolding): indices of the"
                " template %s are searched with mark-up and accents as they stand; search the field %s of"
                " results, which has neither.",
                HOSTS,
                self._options.address,
                name,
                TEXT,
            )
        return content

    async def _adjust_index(self, client: AsyncElasticsearch) -> None:
        """Of an index that was there before."""
        wanted = dict(self._template.properties)
        if META not in wanted:  # nothing of producers' is in it
            return
        if self._has_text:
            wanted[TEXT] = {"type": "text"}
        try:
            found = await client.options(ignore_status=404).indices.get_mapping(index=self._index)
            for index, change in closing_changes(found.body, META, wanted[META]):
                await client.indices.put_mapping(index=index, properties=change)
                logger.info("Index %s makes no field of a new key in %s from now on.", shown(index), META)
            for index, added in added_fields(found.body, wanted):
                await client.indices.put_mapping(index=index, properties=added)
                logger.info("Index %s has the new fields %s.", shown(index), ", ".join(added))
            self._has_text = self._has_text or has_field(found.body, TEXT)
        except ApiError as error:
            if error.status_code not in (400, 403):
                raise
            logger.info("The mapping of %s stays as it is: %s", self._index, explained(error))
