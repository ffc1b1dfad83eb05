"""Prepares an index before the first write: health of the server, rights, index template, mapping.

Every complete Elasticsearch has the module analysis-common, with html_strip and asciifolding. A slim
distribution refuses a template that names them. There the index of results has a further field, body_text,
for the text of a page, which the sink fills.
"""

from __future__ import annotations

import copy
import json
import logging
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from elastic_transport import TlsError
from elasticsearch import ApiError, AuthenticationException, Elasticsearch, UnsupportedProductError

from site_spider.adapters.elasticsearch.client import (
    HOSTS,
    ElasticsearchOptions,
    UnexpectedResponse,
    explained,
    shown,
    within,
)
from site_spider.errors import ConfigError
from site_spider.installation import resource

logger = logging.getLogger(__name__)

TEXT: Final = "body_text"  # the text of `body`, where the server cannot make it
_BODY: Final = "body"
_ANALYZERS: Final = ("page_text", "plain_text")
_REFUSALS: Final = ("char_filter", "failed to find filter")
# by a query that names no field
_SEARCHED: Final = [TEXT, "title", "text", "description", "url", "url_id", "host", "task_id", "reason"]


class IndexTemplate:
    """The template as it is sent, of an index for documents of this kind: results, items, stats."""

    def __init__(self, kind: str, index: str) -> None:
        path = resource("elasticsearch") / f"{kind}-template.json"
        template: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        self.name = f"site_spider-{index}"
        self.version: int = template["version"]
        # Two templates of one priority may not share a name. The longer name is the more
        # specific one, and priorities that people choose themselves (100 and up) win over it.
        self.content: dict[str, Any] = {
            "index_patterns": [index, f"{index}-*"],
            "priority": min(len(index), 99),
            "version": template["version"],
            "meta": template["_meta"],
            "template": template["template"],
        }

    @property
    def properties(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.content["template"]["mappings"]["properties"]
        return found

    def reduced(self, refusal: ApiError) -> dict[str, Any] | None:
        """Without what a server refuses that does not know it; None when it is refused for another reason."""
        content = copy.deepcopy(self.content)
        template = content["template"]
        said = explained(refusal) if refusal.status_code == 400 else ""
        if "ignore_dynamic_beyond_limit" in said:  # before 8.14: documents with too many fields are refused
            del template["settings"]["index"]["mapping"]["total_fields"]
            return content
        if not any(words in said for words in _REFUSALS):
            return None
        template["settings"].pop("analysis")
        template["mappings"] = _without_analyzers(template["mappings"])
        if _BODY in self.properties:
            template["mappings"]["properties"][TEXT] = {"type": "text"}
            template["settings"]["index"]["query"] = {"default_field": _SEARCHED}
        return content


def newest(answer: object, version: int) -> Mapping[str, Any] | None:
    """The template on the server, if it has this version or a newer one. Raises UnexpectedResponse."""
    if not isinstance(answer, Mapping):
        raise UnexpectedResponse("the answer about an index template is no object", answer)
    templates = answer.get("index_templates")
    for template in templates if isinstance(templates, list) else []:
        found = within(template, "index_template") or {}
        if isinstance(its_version := found.get("version"), int) and its_version >= version:
            return found
    return None


def has_text(template: Mapping[str, Any]) -> bool:
    """Whether indices of a template have the field for texts."""
    return TEXT in (within(template, "template", "mappings", "properties") or ())


def _without_analyzers(mapping: Mapping[str, Any]) -> dict[str, Any]:
    """A copy without ours."""

    def kept(inner: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in inner.items() if name != "analyzer" or value not in _ANALYZERS}

    copied: dict[str, Any] = json.loads(json.dumps(mapping), object_hook=kept)
    return copied


# --- mapping: adjusts the mapping of an index that existed before ----------------------------------------
# It gets the fields that it lacks: a strict mapping refuses no result for them, and others map them as a new
# index does.
#
# And `meta` of one producer harms no other results. Elasticsearch makes a field of every new key of an
# object, up to 1,000 in an index; beyond them it refuses whatever has a new key, whoever sends it. In an
# index of ours `meta` is one field, whatever is in it.

_CLOSED = {"false", "strict"}  # values of `dynamic` with which no field is made
_NOT_MAPPED = re.compile(r"strict_dynamic_mapping_exception.*?introduction of \[([\w.-]+)\] within \[([\w.-]+)\]")


def added_fields(answer: object, wanted: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The fields that each index, in an answer about mappings, lacks, as `wanted` maps them.

    An index that is there gets no new analyzers: new texts have the one that it has for all. One whose
    mapping ignores unknown fields stays as it is.
    """
    for index, mappings in _mappings(answer):
        known = within(mappings, "properties") or {}
        added = _without_analyzers({name: one for name, one in wanted.items() if name not in known})
        if added and str(mappings.get("dynamic")).lower() != "false":
            yield index, added


def not_mapped(reason: str) -> str:
    """The field for which a strict mapping refused a document; empty when it was for another reason.

    With dots for one of an object, which may be a field of a document whose name has dots, or the begin of one.
    """
    found = _NOT_MAPPED.search(reason)
    return f"{found[2]}.{found[1]}".removeprefix("_doc.") if found else ""


def _mappings(answer: object) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for index, found in answer.items() if isinstance(answer, Mapping) else ():
        if (mappings := within(found, "mappings")) is not None:
            yield str(index), mappings


def closing_changes(answer: object, field: str, wanted: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The change to the properties of each index, in an answer about mappings, that makes fields of `field`.

    `wanted` is the mapping of one that is not there yet. What is mapped already stays.
    """
    for index, mappings in _mappings(answer):
        now = (within(mappings, "properties") or {}).get(field)
        # an object that says nothing does as those above it
        said = now if isinstance(now, Mapping) and "dynamic" in now else mappings
        if str(said.get("dynamic", "true")).lower() in _CLOSED:
            continue
        if now is None:
            yield index, {field: dict(wanted)}
        elif isinstance(now, Mapping) and (kind := now.get("type", "object")) in ("object", "nested"):
            yield index, {field: {"type": kind, "dynamic": False}}


# --- preparation: what is done and refused at the start --------------------------------------------------

META = "meta"  # the field for what producers send along
HEALTH_WAIT = "5s"  # of the server, for its shards
REMEDY_CREDENTIALS = 'as {"basic_auth": ["name", "password"]} or {"api_key": "..."}, what it accepts'
REMEDY_TLS = 'ca_certs, as {"ca_certs": "/path/ca.pem"}, to the CA that signed its certificate'

_RIGHTS = ("create_index", "read", "write")


class IndexPreparation:
    """Prepares one index: installs its template before the first write creates the index."""

    def __init__(self, options: ElasticsearchOptions, index: str, template: IndexTemplate) -> None:
        self._options, self._index, self._template = options, index, template

    def run(self, client: Elasticsearch) -> bool:
        """Whether results get a field for the text of pages. Raises SinkUnavailable, ConfigError."""
        with self._refusing():
            self._check_server(client)
            return self.adjust(client, has_text=self._install_template(client))

    def check(self, client: Elasticsearch) -> str:
        """What `run` would find; nothing is changed. Raises SinkUnavailable, ConfigError."""
        with self._refusing():
            self._check_server(client)
            exists = bool(client.indices.exists(index=self._index))
        there = "is there" if exists else "will be created"
        return f"{self._options.address} answers; index {self._index} {there}"

    @contextmanager
    def _refusing(self) -> Iterator[None]:
        """As `explaining`. Raises ConfigError where waiting would not help."""
        with self._options.explaining():
            try:
                yield
            except UnsupportedProductError as error:
                raise ConfigError(f"{HOSTS} is {self._options.address!r}: that is not Elasticsearch.") from error
            except TlsError as error:
                raise self._options.refused(explained(error), REMEDY_TLS) from error
            except AuthenticationException as error:
                raise self._options.refused(explained(error), REMEDY_CREDENTIALS) from error

    def _check_server(self, client: Elasticsearch) -> None:
        """Its health, and rights without which no result could ever be written. Raises ConfigError."""
        # GET / and HEAD / are refused by slim distributions and by some proxies.
        try:
            client.cluster.health(wait_for_status="yellow", timeout=HEALTH_WAIT)
        except ApiError as error:
            if error.status_code not in (403, 408):  # 408: some shards are not ready, and need not be ours
                raise
            if error.status_code == 403:
                logger.warning("%s refuses the request for its health: %s", HOSTS, explained(error))
        except (TypeError, ValueError, AttributeError) as error:
            raise self._options.not_taken(error) from None  # it looks at some options at its first request only
        wanted = [{"names": [self._index], "privileges": list(_RIGHTS)}]
        try:
            answer = client.security.has_privileges(index=wanted)
        except AuthenticationException:
            raise
        except ApiError:
            return  # a server without users, or one that does not say
        held = within(answer.body, "index", self._index) or {}
        if missing := [right for right in _RIGHTS if held.get(right) is False]:
            reason = f"the login has no right to {' and '.join(missing)} in the index {self._index}"
            raise self._options.refused(reason, "a login that has it, or grant it (docs/security.md)")

    def _install_template(self, client: Elasticsearch) -> bool:
        """Whether its indices have the field for texts."""
        name = self._template.name
        try:
            answer = client.options(ignore_status=404).indices.get_index_template(name=name)
            found = newest(answer.body, self._template.version)
            # somebody may have changed one that is there to his needs
            return has_text(self._put_template(client) if found is None else found)
        except ApiError as error:
            if error.status_code not in (400, 403):
                raise
            logger.warning(
                "The index template %s could not be installed, so a new index gets guessed mappings: %s",
                name,
                explained(error),
            )
            return False

    def _put_template(self, client: Elasticsearch) -> dict[str, Any]:
        """Returns what was installed: all of it, or less where the server lacks the filters of texts."""
        name, content = self._template.name, self._template.content
        try:
            client.indices.put_index_template(name=name, **content)
        except ApiError as error:
            if (reduced := self._template.reduced(error)) is None:
                raise
            content = reduced
            client.indices.put_index_template(name=name, **content)
        if content["template"]["mappings"] != self._template.content["template"]["mappings"]:
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

    def adjust(self, client: Elasticsearch, *, has_text: bool) -> bool:
        """Of an index that is there; whether it has the field for texts, or a new one will. Raises like the client."""
        wanted = dict(self._template.properties)
        if META not in wanted:  # nothing of producers' is in it
            return has_text
        if has_text:
            wanted[TEXT] = {"type": "text"}
        try:
            found = client.options(ignore_status=404).indices.get_mapping(index=self._index)
            for index, change in closing_changes(found.body, META, wanted[META]):
                client.indices.put_mapping(index=index, properties=change)
                logger.info("Index %s makes no field of a new key in %s from now on.", shown(index), META)
            for index, added in added_fields(found.body, wanted):
                client.indices.put_mapping(index=index, properties=added)
                logger.info("Index %s has the new fields %s.", shown(index), ", ".join(added))
            return has_text or any(TEXT in (within(one, "properties") or ()) for _, one in _mappings(found.body))
        except ApiError as error:
            if error.status_code not in (400, 403):
                raise
            logger.info("The mapping of %s stays as it is: %s", self._index, explained(error))
            return has_text
