"""As much of Elasticsearch as a sink needs, played on loopback."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.contracts.sink import Record, Verdict
from tests.adapters.raw_server import Asked, Said, answering, said
from tests.contracts.trials import written

KEYS = ["a", "b", "c"]
RECORDS = [Record(key, {"status": 200, "body": "text"}, 100) for key in KEYS]


def good(asked: Asked) -> bytes:
    """What Elasticsearch says to anything that the sink asks."""
    if "_bulk" in asked.path:
        return bulk([item(key) for key in asked.ids], errors=False)
    return said({"index_templates": []})


def item(key: Any, status: Any = 200, **more: Any) -> dict[str, Any]:
    return {"update": {"_id": key, "status": status, **more}}


def bulk(items: Any, errors: Any = False, **how: Any) -> bytes:
    return said({"errors": errors, "items": items}, **how)


def settings_for(address: str) -> dict[str, Any]:
    return {"SITE_ELASTICSEARCH_HOSTS": address, "SITE_RESULTS_INDEX": "results", "SITE_STATS_INDEX": "stats"}


def write_to(answer: Callable[[Asked], Said], *batches: Sequence[Record]) -> list[Verdict]:
    """What the sink makes of these batches, or of one of its own."""
    with answering(answer) as address:
        return written(ElasticsearchSink.from_settings(settings_for(address)), *(batches or [RECORDS]))


def to(part: str, answer: Said) -> Callable[[Asked], Said]:
    """Answers so where this is in the path, and all else well."""
    return lambda asked: answer if part in asked.path else good(asked)
