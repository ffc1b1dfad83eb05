"""Pages that were received, and then something of the user's own failed on them: what their documents say."""

from __future__ import annotations

import traceback
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from scrapy.exceptions import DropItem
from scrapy.http import Response

from site_spider import Result, SeedSpider, page_of
from site_spider.download.bodies import LARGE_BYTES
from tests.in_process import engine
from tests.in_process.engine import crawl, page

URL = "http://h.test/p"
BODY = "<p>what the site said"
PIPELINES = {"site_spider.results.pipeline.ResultPipeline": 900}


@pytest.fixture(autouse=True)
def site() -> None:
    engine.ANSWERS["/p"] = lambda request: page(request, BODY)


def document_of(folder: Path, spider: type[SeedSpider], **settings: Any) -> dict[str, Any]:
    """The one that the seed has, which says all that is known of the page."""
    (document,) = crawl(folder, [{"url": URL}], spider, **settings).documents.values()
    assert document["fetched_at"]
    assert (document["status"], document["final_url"], document["spider"]) == (200, URL, spider.name)
    assert document["headers"] == '{"Content-Type": ["text/html; charset=utf-8"]}'
    return document


class Raises(SeedSpider):
    def parse(self, response: Response) -> Any:
        raise ValueError("on purpose")


class RaisesHalfWay(SeedSpider):
    async def parse(self, response: Response) -> AsyncIterator[Any]:  # type: ignore[override]
        yield {"title": "first"}
        raise ValueError("on purpose")


class WantsItemsAlone(Raises):
    page_results = False


class HasABrokenPageResult(Raises):
    async def page_result(self, response: Response) -> Result | None:
        raise KeyError("another one")


@pytest.mark.parametrize("spider", [Raises, RaisesHalfWay, WantsItemsAlone, HasABrokenPageResult])
def test_a_callback_that_raises_leaves_the_page_as_it_was_received(
    spider: type[SeedSpider], tmp_path: Path
) -> None:
    """Whatever sort of callback it is."""
    document = document_of(tmp_path, spider)
    assert (document["body"], document["description"]) == (BODY, "ValueError in the spider: on purpose")


@pytest.mark.parametrize("spider", [Raises, RaisesHalfWay])
def test_the_traceback_begins_with_the_line_of_the_spider(
    spider: type[SeedSpider], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """How the engine came there is the same for all."""
    document_of(tmp_path, spider)
    (record,) = [record for record in caplog.records if "Spider error" in record.getMessage()]
    assert record.exc_info is not None
    assert [frame.name for frame in traceback.extract_tb(record.exc_info[2])] == ["parse"]


def test_a_failure_on_a_page_that_is_an_error_itself_says_both(tmp_path: Path) -> None:
    """The reason is that of the spider."""
    engine.ANSWERS["/p"] = lambda request: page(request, BODY, 404)
    (document,) = crawl(tmp_path, [{"url": URL}], Raises).documents.values()
    assert document["description"] == "ValueError in the spider: on purpose (HTTP 404 Not Found)"
    assert (document["reason"], document["status"]) == ("ValueError in the spider", 404)


@pytest.mark.parametrize("spider", [Raises, WantsItemsAlone])
def test_a_large_page_is_there_whole(spider: type[SeedSpider], tmp_path: Path) -> None:
    """It is read as that of a callback that does not raise."""
    body = "<p>" + "x" * 2 * LARGE_BYTES
    engine.ANSWERS["/p"] = lambda request: page(request, body)
    assert document_of(tmp_path, spider)["body"] == body


class FailsOnItems:
    def process_item(self, item: Any) -> Any:
        if isinstance(item, Result):
            return item
        raise ValueError("on purpose")


class FailsOnResults:
    def process_item(self, item: Any) -> Any:
        raise ValueError("on purpose")


class DropsResults:
    def process_item(self, item: Any) -> Any:
        raise DropItem("on purpose")


class GivesItsResultFirst(SeedSpider):
    async def parse(self, response: Response) -> list[Any]:
        return [*await super().parse(response), {"title": "x"}]


@pytest.mark.parametrize("pipeline", [FailsOnItems, FailsOnResults, DropsResults])
def test_a_pipeline_that_fails_is_said_in_the_document_of_the_page(pipeline: type, tmp_path: Path) -> None:
    """Also where the spider gave the result of the page before the item."""
    document = document_of(tmp_path, GivesItsResultFirst, ITEM_PIPELINES={pipeline: 100, **PIPELINES})
    assert document["body"] == BODY
    assert "on purpose" in document["description"]


class Refuses:
    def process_spider_input(self, response: Response) -> None:
        raise ValueError("on purpose")


class FailsAfterwards:
    def process_spider_output(self, response: Response, result: Any) -> Iterator[Any]:
        raise ValueError("on purpose")
        yield

    async def process_spider_output_async(self, response: Response, result: Any) -> AsyncIterator[Any]:
        raise ValueError("on purpose")
        yield


@pytest.mark.parametrize("middleware", [Refuses, FailsAfterwards])
def test_a_spider_middleware_that_raises_leaves_the_page_as_it_was_received(
    middleware: type, tmp_path: Path
) -> None:
    """Before the callback and behind it."""
    document = document_of(tmp_path, SeedSpider, SPIDER_MIDDLEWARES={middleware: 10})
    assert document["body"] == BODY
    assert "ValueError" in document["description"]
    assert "on purpose" in document["description"]


def test_a_document_that_a_spider_makes_itself_has_a_time_and_the_name_of_the_spider(tmp_path: Path) -> None:
    """Kibana finds none without a time."""

    class MakesItsOwn(SeedSpider):
        name = "own"

        def parse(self, response: Response) -> Any:  # type: ignore[override]
            yield Result(page_of(response).url_id, response.status, body="mine")
            yield Result("another", description="not looked at")

    documents = crawl(tmp_path, [{"url": URL}], MakesItsOwn).documents.values()
    assert len(documents) == 2
    assert all(document["fetched_at"] and document["spider"] == "own" for document in documents)


class Answers:
    def process_spider_exception(self, response: Response, exception: Exception) -> list[Any]:
        return [{"title": "instead"}, Result(page_of(response).url_id, response.status, body="instead")]


def test_a_middleware_may_have_an_answer_to_a_callback_that_raises(tmp_path: Path) -> None:
    """Then the page is as the middleware says."""
    (document,) = crawl(tmp_path, [{"url": URL}], Raises, SPIDER_MIDDLEWARES={Answers: 10}).documents.values()
    assert (document["body"], document["description"]) == ("instead", None)
