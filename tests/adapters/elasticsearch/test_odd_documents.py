"""What a reader makes of answers that make no sense, and of documents that are not ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from site_spider.adapters.elasticsearch.results import ElasticsearchResults
from tests.adapters.elasticsearch.odd_answers import ODD, complaint, odd, settings_for
from tests.adapters.raw_server import Asked, Said, answering, said

CALLS: dict[str, Callable[[ElasticsearchResults], Any]] = {
    "_doc": lambda reader: reader.get("a"),
    "_refresh": lambda reader: reader.count(),
    "_count": lambda reader: reader.count(),
    "_pit": lambda reader: list(reader.search()),
    "_search": lambda reader: list(reader.search()),
}


@pytest.mark.parametrize("where", CALLS)
def test_a_reader_says_what_it_was_answered(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, no traceback, whatever came."""
    monkeypatch.setattr("site_spider.adapters.elasticsearch.client.PAGE_BYTES", 8_000_000)
    answer: Said = b""

    def answered(asked: Asked) -> Said:
        if where in asked.path:
            return answer
        return said({"id": "point", "count": 1, "hits": {"hits": []}})

    with answering(answered) as address:
        reader = ElasticsearchResults.from_settings(settings_for(address))
        for name in ODD:
            answer = odd(name)
            said_so = complaint(partial(CALLS[where], reader))
            assert said_so or where == "_refresh", name  # which says nothing that counts
            assert said_so.isprintable(), name
            assert len(said_so) < 1000, name
        reader.close()


def test_a_reader_halves_a_page_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Up to 100 bodies of megabytes each."""
    monkeypatch.setattr("site_spider.adapters.elasticsearch.client.PAGE_BYTES", 100_000)
    sizes = []

    def answer(asked: Asked) -> Said:
        if "_search" not in asked.path:
            return said({"id": "point"})
        size = json.loads(asked.body)["size"]
        sizes.append(size)
        hits = [{"_id": str(n), "_source": {"body": "x" * 10_000}, "sort": [n]} for n in range(size)]
        return said({"hits": {"hits": hits}})

    with answering(answer) as address:
        reader = ElasticsearchResults.from_settings(settings_for(address))
        assert len(list(reader.search(limit=30))) == 30
        reader.close()
    assert max(sizes) == 30
    assert sizes[-1] <= 7


def test_documents_that_are_not_ours_are_shown() -> None:
    """Without a source, or with one that is null, as an index with other mappings has them."""
    hits = [{"_id": "a", "sort": [1]}, {"_id": "b", "_source": None, "sort": [2]}]
    pages = [{"hits": {"hits": []}}, {"hits": {"hits": hits}}]

    def answer(asked: Asked) -> Said:
        return said(pages.pop() if "_search" in asked.path else {"id": "point"})

    with answering(answer) as address:
        reader = ElasticsearchResults.from_settings(settings_for(address))
        assert list(reader.search()) == [{"url_id": "a"}, {"url_id": "b"}]
        reader.close()
