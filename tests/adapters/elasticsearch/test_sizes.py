"""413 of a proxy in trouble, which refuses anything, and of one with a limit."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest

from site_spider.adapters.elasticsearch import sink
from site_spider.adapters.elasticsearch.sink import ElasticsearchSink, Sizes
from site_spider.contracts.sink import Answer, Record
from tests.adapters.elasticsearch.odd_answers import bulk, good, item, settings_for
from tests.adapters.raw_server import Asked, Said, answering, said
from tests.contracts.trials import answers, written

REFUSED = said(b"<html>413</html>", status=413, kind="text/html")


def records(*sizes: int) -> list[Record]:
    return [Record(f"r{number}", {"body": "x" * size}, size) for number, size in enumerate(sizes)]


def write(answer: Callable[[Asked], Said], *batches: list[Record]) -> list[Answer]:
    with answering(answer) as address:
        return answers(written(ElasticsearchSink.from_settings(settings_for(address)), *batches))


def limited_to(limit_bytes: int) -> Callable[[Asked], Said]:
    """A proxy that refuses larger requests; a probe changes nothing behind it."""

    def answer(asked: Asked) -> Said:
        if "_bulk" not in asked.path:
            return good(asked)
        if len(asked.body) > limit_bytes:
            return REFUSED
        missing = {"type": "document_missing_exception", "reason": "missing"}
        items = [
            item(key, 404, error=missing) if key == "site_spider-probe" else item(key) for key in asked.ids
        ]
        return bulk(items, errors="site_spider-probe" in asked.ids)

    return answer


def test_a_proxy_that_refuses_everything_is_an_outage() -> None:
    def answer(asked: Asked) -> Said:
        return REFUSED if "_bulk" in asked.path else good(asked)

    assert set(write(answer, records(10, 2000, 300, 5))) == {Answer.RETRY}


@pytest.mark.parametrize("count", [1, 2, 5])
def test_only_the_record_that_is_larger_than_those_that_pass_is_rejected(count: int) -> None:
    """Also when there is no other record that could show it."""
    sizes = [100] * (count - 1)
    found = write(limited_to(5000), records(*sizes, 20_000))
    assert found == [*[Answer.ACKNOWLEDGED] * (count - 1), Answer.REJECTED]


def test_a_record_that_is_smaller_than_what_has_passed_lately_is_tried_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sink, "_REMEMBERED_SECONDS", 3600.0)  # of a machine that stands still
    refusals = itertools.count()

    def answer(asked: Asked) -> Said:
        if b"r0" in asked.body and b"y" * 50 in asked.body and next(refusals) < 5:
            return REFUSED
        return limited_to(100_000)(asked)

    later = [Record("r0", {"body": "y" * 300}, 300)]
    assert Answer.REJECTED not in write(answer, records(4000), later, later, later)


def test_a_refusal_that_passes_is_no_fault() -> None:
    """Refused alone once, and taken when something smaller has passed."""
    refusals = itertools.count()

    def answer(asked: Asked) -> Said:
        return REFUSED if b"xxx" in asked.body and next(refusals) < 1 else limited_to(10**6)(asked)

    assert write(answer, records(3000)) == [Answer.ACKNOWLEDGED]


def test_what_passed_long_ago_says_nothing() -> None:
    sizes = Sizes()
    sizes.passed(1000, 0.0)
    sizes.passed(10, 30.0)
    assert not sizes.is_largest(500, 59.0)
    assert sizes.is_largest(500, 61.0)
    assert not sizes.is_largest(10, 61.0)
    assert sizes.has_passed_since(29.0)
    assert not sizes.has_passed_since(30.0)
