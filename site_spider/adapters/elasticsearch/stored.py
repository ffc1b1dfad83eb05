"""What is stored of documents already, as far as it decides which nulls are written: see results.nulls.

No script in the update does this, for a server may have no language for scripts, or allow none.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from elasticsearch import ApiError, AsyncElasticsearch

from site_spider.adapters.elasticsearch.answer import UnexpectedResponse
from site_spider.contracts.sink import Record
from site_spider.results.document import absent, is_marked, looked_at, settled

_Stored = Mapping[str, Mapping[str, Any]]  # by _id


async def over_stored(client: AsyncElasticsearch, index: str, records: Sequence[Record]) -> Sequence[Record]:
    """The records as they are written over what is stored. Raises like the client, and UnexpectedResponse."""
    names = {name for record in records if is_marked(record.document) for name in absent(record.document)}
    stored = await _ask(client, index, [id_of(record) for record in records], names) if names else {}
    return [_over(stored.get(id_of(record), {}), record) for record in records]


def _over(stored: Mapping[str, Any], record: Record) -> Record:
    document = settled(stored, record.document)
    return (
        record
        if document is record.document
        else Record(record.key, document, record.size_bytes, record.kind)
    )


async def _ask(client: AsyncElasticsearch, index: str, keys: Sequence[str], names: Iterable[str]) -> _Stored:
    try:
        answer = await client.mget(
            index=index,
            ids=list(dict.fromkeys(keys)),
            source_includes=looked_at(sorted(names)),
            filter_path="docs._id,docs._source",
        )
    except ApiError as error:
        if error.status_code in (403, 404):  # it may not be read, or is not there yet
            return {}
        raise
    return _by_id(answer.body)


def id_of(record: Record) -> str:
    """The `_id`, as it is sent and comes back."""
    return record.key.encode("utf-8", "replace").decode()


def _by_id(answer: object) -> _Stored:
    docs = answer.get("docs", []) if isinstance(answer, Mapping) else None
    if not isinstance(docs, list):
        raise UnexpectedResponse("the answer to a multi-get is not one", answer)
    found = [doc for doc in docs if isinstance(doc, Mapping) and isinstance(doc.get("_source"), Mapping)]
    return {str(doc.get("_id")): doc["_source"] for doc in found}
