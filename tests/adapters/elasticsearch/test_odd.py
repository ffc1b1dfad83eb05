"""What Elasticsearch, or whatever stands in its place, says that makes no sense: kept, retried, said once."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest

from site_spider.adapters.elasticsearch.sink import ElasticsearchSink
from site_spider.contracts.sink import Answer, Verdict
from site_spider.errors import SinkUnavailable
from tests.adapters.elasticsearch.odd_answers import (
    GOOD,
    ODD,
    RECORDS,
    bulk,
    complaint,
    good,
    item,
    odd,
    settings_for,
)
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
    """In one short line without control characters."""
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


@pytest.mark.parametrize(
    "error", ["because", ["because"], 7, {"type": ["because"]}, {"caused_by": "because"}]
)
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
