"""What Elasticsearch, or whatever stands in its place, says that makes no sense: kept, retried, said once."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from site_spider.adapters.elasticsearch.results import ElasticsearchResults
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.contracts.sink import Answer, Verdict
from site_spider.errors import SinkUnavailable
from tests.adapters.elasticsearch.odd_answers import GOOD, ODD, RECORDS, bulk, complaint, good, item, odd, settings_for
from tests.adapters.raw_server import Asked, Said, answering, said
from tests.contracts.trials import written


def write_to(answer: Callable[[Asked], Said]) -> list[Verdict]:
    """What the sink makes of one batch."""
    with answering(answer) as address:
        return written(ElasticsearchSink.from_settings(settings_for(address)), RECORDS)


def to_bulk(answer: Said) -> Callable[[Asked], Said]:
    """Answers a bulk request so, and all else well."""
    return lambda asked: answer if "_bulk" in asked.path else good(asked)


@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_is_an_outage_that_says_what_came(name: str) -> None:
    with pytest.raises(SinkUnavailable) as caught:
        write_to(to_bulk(odd(name)))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_what_came_stands_in_the_error() -> None:
    """So that somebody sees which proxy it was."""
    with pytest.raises(SinkUnavailable, match=r"\\x1b\[2Jplease log in"):
        write_to(to_bulk(odd("html")))


@pytest.mark.parametrize("where", ["_cluster", "_index_template", "_mapping"])
@pytest.mark.parametrize("name", ODD)
def test_an_odd_answer_while_opening_is_an_outage_or_passed_over(name: str, where: str) -> None:
    """Health and template are no reason to stumble."""
    verdicts: list[Verdict] = []
    said_so = complaint(
        lambda: verdicts.extend(write_to(lambda asked: odd(name) if where in asked.path else good(asked)))
    )
    assert said_so or [verdict.answer for verdict in verdicts] == [Answer.ACKNOWLEDGED] * 3
    assert said_so.isprintable()
    assert len(said_so) < 1000


TEMPLATES = {
    "items without a template": [{"name": "x"}],
    "version as text": [{"index_template": {"version": "many"}}],
    "version as a list": [{"index_template": {"version": []}}],
    "templates null": None,
    "templates as numbers": [1, None],
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_an_odd_template_is_replaced_by_ours(name: str) -> None:
    """As one without a version is."""
    put = []

    def answer(asked: Asked) -> Said:
        if asked.method == "PUT" and "_index_template" in asked.path:
            put.append(asked.path)
        if asked.method == "GET" and "_index_template" in asked.path:
            return said({"index_templates": TEMPLATES[name]})
        return good(asked)

    write_to(answer)
    assert len(put) == 1


@pytest.mark.parametrize("error", ["because", ["because"], 7, {"type": ["because"]}, {"caused_by": "because"}])
def test_a_reason_of_a_wrong_shape_is_shown_as_it_is(error: Any) -> None:
    """Who is refused, and who is not, is said by the status and the type."""
    verdicts = write_to(to_bulk(bulk([item("a", 503, error=error), *GOOD[1:]], errors=True)))
    assert [verdict.answer for verdict in verdicts] == [Answer.RETRY, *[Answer.ACKNOWLEDGED] * 2]
    assert "because" in verdicts[0].reason or error == 7


def test_a_refusal_without_elasticsearchs_words_refuses_nothing() -> None:
    """A 400 whose error has no type may be a proxy's: rule 7."""
    verdicts = write_to(to_bulk(bulk([item("a", 400, error="no"), *GOOD[1:]], errors=True)))
    assert verdicts[0].answer is Answer.RETRY


def test_a_long_reason_is_cut() -> None:
    """It goes into a header of the dead letter, and onto terminals."""
    error = {"type": "document_parsing_exception", "reason": "\x1b]0;" + "x" * 100_000}
    verdicts = write_to(to_bulk(bulk([item("a", 400, error=error), *GOOD[1:]], errors=True)))
    assert verdicts[0].answer is Answer.REJECTED
    assert len(verdicts[0].reason) < 1000
    assert verdicts[0].reason.isprintable()


@pytest.mark.parametrize("name", ["bomb", "endless body", "endless headers"])
def test_an_answer_without_bounds_takes_little_memory(name: str) -> None:
    """100 MB and more are not held."""
    tracemalloc.start()
    try:
        with pytest.raises(SinkUnavailable):
            write_to(to_bulk(odd(name)))
        assert tracemalloc.get_traced_memory()[1] < 60_000_000
    finally:
        tracemalloc.stop()


def test_warnings_of_the_server_are_not_printed(recwarn: pytest.WarningsRecorder) -> None:
    """Each with words of its own would be kept for ever, and be a line on stderr."""
    write_to(lambda asked: said(good(asked).partition(b"\r\n\r\n")[2], more=b'Warning: 299 x "\x1b[2J"\r\n'))
    assert not recwarn.list


# --- a reader, and documents that are not ours ----------------------------------------------------


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
