"""Writes documents to an Elasticsearch index, by bulk partial updates with upsert.

When the server refuses a whole request, because of one line in it or for its size, the halves
are written by themselves until the guilty record stands alone. One that is refused alone for its size is
written once more after something smaller has passed, see `Sizes`.
"""

from __future__ import annotations

import logging
import re
import unicodedata
from collections.abc import Mapping, Sequence, Set
from contextlib import closing
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, Self

from elasticsearch import ApiError, Elasticsearch, TransportError

from site_spider import runtime
from site_spider.adapters.elasticsearch.client import (
    AnswerTooLarge,
    BoundedNode,
    ElasticsearchOptions,
    UnexpectedResponse,
    documents,
    explained,
    index_name,
    part,
    reason_of,
    shown,
    words_of,
)
from site_spider.adapters.elasticsearch.index_template import TEXT, IndexPreparation, IndexTemplate, not_mapped
from site_spider.adapters.files import ThreadSink
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import SinkRejected, SinkUnavailable
from site_spider.options import SettingsView
from site_spider.page.links import unescape
from site_spider.results.document import ALWAYS, OF_MARK, encode, in_doubt, looked_at, settled

# --- page text: the words of a page without mark-up and accents, for a server that cannot make them itself

MOST_CHARACTERS: Final = 200_000  # of mark-up that is looked at: about 10 ms
_MARKUP: Final = re.compile(
    r"<!--.*?(?:-->|\Z)|<(script|style)\b.*?(?:</\1[^>]*+>?|\Z)|</?[a-z!?][^>]*+>?", re.DOTALL | re.IGNORECASE
)
_COMBINING: Final = re.compile("[\u0300-\u036f]")


def page_text(body: str) -> str:
    """What a reader of the beginning of a page sees, with `é` as `e`."""
    text = " ".join(unescape(_MARKUP.sub(" ", body[:MOST_CHARACTERS])).split())
    return text if text.isascii() else _COMBINING.sub("", unicodedata.normalize("NFKD", text))


logger = logging.getLogger(__name__)

# --- sizes: whether a record that is refused for its size is at fault, or the server at the moment -------
# A proxy in trouble answers 413 to requests of any size, and records would be set aside for nothing. So a
# record is at fault when it is refused alone, twice, while a smaller request passes in between and no
# larger one passed lately.

_REMEMBERED_SECONDS = 60.0  # a limit may be lowered meanwhile


class Sizes:
    """Sizes of requests that passed lately. `now` is any clock that does not go backwards. Threads share it."""

    def __init__(self) -> None:
        self._passed: list[tuple[float, int]] = []  # the sizes descend; replaced as a whole

    def passed(self, size_bytes: int, now: float) -> None:
        self._passed = [*(one for one in self._lately(now) if one[1] > size_bytes), (now, size_bytes)]

    def is_largest(self, size_bytes: int, now: float) -> bool:
        return all(size < size_bytes for _, size in self._lately(now))

    def has_passed_since(self, moment: float) -> bool:
        return bool(self._passed) and self._passed[-1][0] > moment

    def _lately(self, now: float) -> list[tuple[float, int]]:
        return [one for one in self._passed if one[0] >= now - _REMEMBERED_SECONDS]


# --- What is stored of documents already, as far as it decides which nulls are written: see results.document
# No script in the update does this, for a server may have no language for scripts, or allow none.

_Stored = Mapping[str, Mapping[str, Any]]  # by _id

# errors of one document that stay: it is not there yet, stands behind an alias of several indices, or may not be read
_NEVER_READ: Final = {"index_not_found_exception", "illegal_argument_exception", "security_exception"}


def over_stored(client: Elasticsearch, index: str, records: Sequence[Record]) -> Sequence[Record]:
    """The records as they are written over what is stored. Raises like the client, and UnexpectedResponse."""
    fields = looked_at(record.document for record in records)
    stored = _stored(client, index, list(dict.fromkeys(map(id_of, records))), fields) if fields else {}
    over = [settled(stored.get(id_of(record), {}), record.document, record.names) for record in records]
    return [replace(record, document=document) for record, document in zip(records, over, strict=True)]


def _stored(client: Elasticsearch, index: str, ids: list[str], fields: list[str]) -> _Stored:
    """Where all of it is too much for an answer, what pages held before is left out: it has megabytes each."""
    try:
        return _ask(client, index, ids=ids, source_includes=fields)
    except TransportError as error:
        _raise_unless_too_large(error)
    marks = _ask(client, index, ids=ids, source_includes=list(OF_MARK))
    # also of a document without any of these, which an answer may leave out
    wanted = [(one, name) for one in ids for name in in_doubt(marks.get(one, {}), fields)]
    more = _in_parts(client, index, wanted) if wanted else {}
    return {one: {**marks.get(one, {}), **more.get(one, {})} for one in ids}


def _in_parts(client: Elasticsearch, index: str, wanted: Sequence[tuple[str, str]]) -> _Stored:
    """These fields of documents; of one that alone is too much for an answer it is known that it is there."""
    names: dict[str, list[str]] = {}
    for one, name in wanted:
        names.setdefault(one, []).append(name)
    try:
        return _ask(client, index, docs=[{"_id": one, "_source": some} for one, some in names.items()])
    except TransportError as error:
        _raise_unless_too_large(error)
    if len(wanted) == 1:
        return {one: dict.fromkeys(some, True) for one, some in names.items()}
    middle = len(wanted) // 2
    first, second = [_in_parts(client, index, part) for part in (wanted[:middle], wanted[middle:])]
    return {one: {**first.get(one, {}), **second.get(one, {})} for one in names}


def _raise_unless_too_large(error: TransportError) -> None:
    if not isinstance(error.__cause__, AnswerTooLarge):
        raise error


def _ask(client: Elasticsearch, index: str, **what: Any) -> _Stored:
    try:
        found = documents(client, index, _NEVER_READ, filter_path="docs._id,docs._source,docs.error", **what)
    except ApiError as error:
        if error.status_code in (403, 404):  # it may not be read, or is not there yet
            return {}
        raise
    return {str(doc.get("_id")): doc["_source"] for doc in found if isinstance(doc.get("_source"), Mapping)}


def id_of(record: Record) -> str:
    """The `_id`, as it is sent and comes back."""
    return record.key.encode("utf-8", "replace").decode()


# --- Reads the answers to bulk requests: a verdict for each record ---------------------------------------
# A record is acknowledged only by an item that names it, and an answer that contradicts itself says nothing.
# A record is refused only for its own sake: a status of 400 or 413 whose error speaks of the document.
# Everything else (429, a version conflict, a closed index, missing rights) may pass later.

Action = Literal["update", "index"]  # a partial update, or the whole document

_REFUSING = {400, 413}
_NOT_THE_RECORDS_FAULT = {
    "index_closed_exception",
    "index_not_found_exception",
    "invalid_index_name_exception",
    "routing_missing_exception",
    "validation_exception",  # the cluster has no room for one more shard
    "cluster_block_exception",
    "security_exception",
}
# An illegal_argument_exception that says so is about the index: an alias of several, a data stream, or its settings.
_OF_THE_INDEX = ("no write index", "only write ops", "pipeline with id")


def verdicts_of(answer: object, keys: Sequence[str], action: Action = "update") -> list[Verdict]:
    """One verdict for each key, in order. Raises UnexpectedResponse."""
    has_errors, items = part(answer, "errors", bool), part(answer, "items", list)
    if len(items) != len(keys):
        raise UnexpectedResponse(f"{len(items)} answers to {len(keys)} records", answer)
    verdicts = [verdict_of(_said_of(item, key, action)) for item, key in zip(items, keys, strict=True)]
    if has_errors is all(verdict is ACKNOWLEDGED for verdict in verdicts):
        raise UnexpectedResponse(f"items contradict errors, which is {has_errors}", answer)
    return verdicts


def verdict_of(update: Mapping[str, Any]) -> Verdict:
    """What the answer to one item of a bulk request means."""
    status, error = update["status"], update.get("error")
    if 200 <= status < 300 and not error:
        return ACKNOWLEDGED
    answer = Answer.REJECTED if _is_own_fault(status, error) else Answer.RETRY
    return Verdict(answer, reason_of(status, error))


def _said_of(item: object, key: str, action: Action) -> Mapping[str, Any]:
    """The answer to the action on this very key. Raises UnexpectedResponse."""
    is_deletion = isinstance(item, Mapping) and "delete" in item
    said = part(item, "delete" if is_deletion else action, dict)
    if is_deletion and said.get("status") == 404 and not said.get("error"):
        said = {**said, "status": 200}  # it was not there
    if said.get("_id") != key or not 200 <= part(said, "status", int) <= 599:
        raise UnexpectedResponse(f"the answer says nothing of {shown(key)}", item)
    return said


def _is_own_fault(status: int, error: object) -> bool:
    kind = error.get("type") if isinstance(error, Mapping) else None
    if status not in _REFUSING or not isinstance(kind, str) or kind in _NOT_THE_RECORDS_FAULT:
        return False
    assert isinstance(error, Mapping)
    return kind != "illegal_argument_exception" or not str(error.get("reason")).startswith(_OF_THE_INDEX)


# --- updates: records as lines of a bulk request ---------------------------------------------------------

RETRY_ON_CONFLICT = 3


class Update(NamedTuple):
    """The two lines of one document, and the id in them."""

    key: str
    lines: bytes


class TooLarge(NamedTuple):
    """Refused for its size, alone."""

    update: Update
    at: float  # monotonic


# Of a document that is not there, without one to be made: nothing is written.
PROBE: Final = Update("site_spider-probe", b'{"update":{"_id":"site_spider-probe"}}\n{"doc":{}}\n')


SHARD_WAIT = "20s"  # of the server, for a shard to write to; shorter than the request timeout
OPEN_TIMEOUT_SECONDS = 10.0
TOO_LARGE = 413
_CONTRACT: Final = ALWAYS - {"url_id"}  # without one of these a result is none
_THREADS = 3  # see BatchLimits.under_way; and one to close while the others wait


class ElasticsearchSink(ThreadSink):
    """Sends as many requests at once as the delivery has batches under way."""

    name = "elasticsearch"

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        return cls(ElasticsearchIndex(settings, "SITE_RESULTS_INDEX", "results", is_shared=True), _THREADS)

    @classmethod
    def for_items(cls, settings: SettingsView) -> Self:
        return cls(ElasticsearchIndex(settings, "SITE_ITEMS_INDEX", "items", "index"), _THREADS)

    @classmethod
    def for_statistics(cls, settings: SettingsView) -> Self:
        return cls(ElasticsearchIndex(settings, "SITE_STATS_INDEX", "stats"), _THREADS)


class ElasticsearchIndex:
    """One index; its template is installed at open, so that the first write creates it well. Threads share it."""

    def __init__(
        self, settings: SettingsView, setting: str, kind: str, action: Action = "update", *, is_shared: bool = False
    ) -> None:
        """The index that a setting names, for documents of this kind. Raises ConfigError."""
        self._is_shared = is_shared  # producers have fields of their own in its documents
        self._index, self._action = index_name(settings, setting), action
        self._options = options = ElasticsearchOptions.from_settings(settings)
        content = IndexTemplate(kind, self._index)
        self._preparation = IndexPreparation(options, self._index, content)
        self._fields = {*content.properties, TEXT} if is_shared else set()  # of results
        self._writes_text = False  # of a page: the server cannot make it of the mark-up
        self._left_out: frozenset[str] = frozenset()  # fields that the mapping does not take
        self._sizes = Sizes()
        self._client: Elasticsearch | None = None
        self._new_client()  # shows at once whether the options are right

    def open(self) -> None:
        self.close()
        client = self._client = self._new_client()  # at once, for another thread may close it
        try:
            self._writes_text = self._preparation.run(client.options(request_timeout=OPEN_TIMEOUT_SECONDS))
        except BaseException:
            client.close()
            raise

    def check(self) -> str:
        with closing(self._new_client()) as client:
            return self._preparation.check(client.options(request_timeout=OPEN_TIMEOUT_SECONDS))

    def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        verdicts = self._write(records)
        kept: Set[str] = frozenset()
        for turn, _ in enumerate(self._fields):  # a refusal names one
            fields = {n: self._named(not_mapped(one.reason), records[n]) - kept for n, one in enumerate(verdicts)}
            again = [n for n, some in fields.items() if some]
            if not again:
                break
            if turn == 0:  # the index may be new, of a template of somebody else
                self._add_fields()
            else:
                self._leave_out(set().union(*fields.values()))
            kept = _CONTRACT
            for number, verdict in zip(again, self._write([records[n] for n in again]), strict=True):
                verdicts[number] = verdict
        return verdicts

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def _new_client(self) -> Elasticsearch:
        return self._options.client(BoundedNode)

    # --- Writing ---

    def _write(self, records: Sequence[Record]) -> list[Verdict]:
        if self._is_shared and self._client is not None:
            with self._options.explaining():
                records = over_stored(self._client, self._index, records)
        encoded = [self._encoded(record) for record in records]
        updates = [one for one in encoded if isinstance(one, Update)]
        answers = self._bulk(updates) if updates else []
        verdicts = iter([self._judged(one) if isinstance(one, TooLarge) else one for one in answers])
        return [next(verdicts) if isinstance(one, Update) else one for one in encoded]

    def _named(self, refused: str, record: Record) -> set[str]:
        """The fields of a result that a refusal names; Elasticsearch makes objects of names with dots."""
        known = {*self._fields, *record.names} if refused else ()
        return {name for name in known if name == refused or name.startswith(f"{refused}.")}

    def _add_fields(self) -> None:
        if self._client is not None:
            with self._options.explaining():
                self._preparation.adjust(self._client, has_text=self._writes_text)

    def _leave_out(self, fields: Set[str]) -> None:
        """Leave out what the mapping of an earlier version refuses; the rest of the result is stored."""
        new = fields - self._left_out  # another batch may have met it, too
        if not new:
            return
        self._left_out |= new
        logger.warning(
            "Index %s has a strict mapping without %s: results are written without. Add the field to the"
            " mapping, or leave it out with SITE_RESULT_FIELDS.",
            self._index,
            ", ".join(sorted(new)),
        )

    def _encoded(self, record: Record) -> Update | Verdict:
        key = id_of(record)
        if record.is_gone:
            return Update(key, b"%b\n" % encode({"delete": {"_id": key}}))
        try:
            document = encode(self._as_stored(record.document))
            if self._action == "index":
                return Update(key, b"%b\n%b\n" % (encode({"index": {"_id": key}}), document))
            update = encode({"update": {"_id": key, "retry_on_conflict": RETRY_ON_CONFLICT}})
            return Update(key, b'%b\n{"doc_as_upsert":true,"doc":%b}\n' % (update, document))
        except SinkRejected as error:
            return Verdict(Answer.REJECTED, str(error))

    def _as_stored(self, document: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._writes_text and "body" in document:  # else a check leaves it, and its text
            body = document["body"]
            document = {**document, TEXT: page_text(body) if isinstance(body, str) else None}
        if self._left_out:
            document = {name: value for name, value in document.items() if name not in self._left_out}
        return document

    def _bulk(self, updates: Sequence[Update]) -> list[Verdict | TooLarge]:
        with self._options.explaining():
            try:
                return [*self._request(updates)]
            except ApiError as error:
                # a 400 without Elasticsearch's words is a proxy's
                if error.status_code != TOO_LARGE and not _is_own_fault(error.status_code, words_of(error)):
                    raise
                if len(updates) == 1 and error.status_code == TOO_LARGE:
                    return [TooLarge(updates[0], runtime.monotonic())]
                if len(updates) == 1:
                    return [Verdict(Answer.REJECTED, explained(error))]
        middle = len(updates) // 2
        return [*self._bulk(updates[:middle]), *self._bulk(updates[middle:])]

    def _judged(self, refused: TooLarge) -> Verdict:
        """What becomes of a record that was refused alone for its size."""
        size_bytes = len(refused.update.lines)
        with self._options.explaining():
            try:
                if self._sizes.is_largest(size_bytes, refused.at):
                    if not self._sizes.has_passed_since(refused.at):
                        self._request([PROBE], "update")
                    return (self._request([refused.update]))[0]
            except ApiError as error:
                if error.status_code == TOO_LARGE and self._sizes.has_passed_since(refused.at):
                    return Verdict(Answer.REJECTED, explained(error))
        return Verdict(Answer.RETRY, f"HTTP {TOO_LARGE} to a request of {size_bytes} bytes")

    def _request(self, updates: Sequence[Update], action: Action | None = None) -> list[Verdict]:
        if self._client is None:
            raise SinkUnavailable("The Elasticsearch sink is not open.")
        lines: list[Any] = [update.lines for update in updates]  # which the client does not declare
        answer = self._client.bulk(
            index=self._index,
            operations=lines,
            timeout=SHARD_WAIT,
            filter_path="errors,items.*._id,items.*.status,items.*.error",
        )
        verdicts = verdicts_of(answer.body, [update.key for update in updates], action or self._action)
        self._sizes.passed(sum(len(update.lines) for update in updates), runtime.monotonic())
        return verdicts
