"""The pipeline that hands results and items to the sinks, last in line."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, Self

from itemadapter import ItemAdapter
from scrapy.crawler import Crawler
from scrapy.exceptions import DropItem, NotConfigured

from site_spider.engine.cancellation import SafeItemProcessor
from site_spider.engine.parts import part_of, takes_seeds
from site_spider.errors import SinkRejected
from site_spider.ledger import completion
from site_spider.results.items import item_record, of_page
from site_spider.results.page_of import page_of
from site_spider.results.result import Result
from site_spider.results.results import Results
from site_spider.results.sinks import Sinks

_LOOK_SECONDS = 0.02


class PlacedItemProcessor(SafeItemProcessor):
    """Numbers the items of each page in the order in which the spider gives them, before any pipeline."""

    def process_item_async(self, item: Any) -> Coroutine[Any, Any, Any]:
        """As Scrapy's."""
        completion.take_place(is_item=not isinstance(item, Result))
        return super().process_item_async(item)


class ResultPipeline:
    """Takes a Result as the document of its page, and anything else as an item; both go on to feeds."""

    def __init__(self, crawler: Crawler) -> None:
        self._crawler = crawler

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        """As Scrapy asks; only for spiders that take seeds."""
        if not takes_seeds(crawler):
            raise NotConfigured
        return cls(crawler)

    def process_item(self, item: Any) -> Any:
        """Queue it for every sink and return it at once; its acknowledgement goes to the ledger.

        While the sinks have too much to do, an item is returned later: a page may give any number.
        """
        results, sinks = part_of(self._crawler, Results), part_of(self._crawler, Sinks)
        assert results is not None, "an item before the spider has opened"
        assert sinks is not None
        document = _result_in(item)
        if document is not None:
            job = completion.current_job()
            is_its_page = job is not None and document["url_id"] == job.url_id
            if job is not None and is_its_page:
                job.page = document  # written again when the callback or a pipeline fails later
            if job is None or not (is_its_page and job.error and job.requests):
                results.submit(document, job)
            return item
        self._submit(item, results)
        return item if sinks.have_room else _later(item, sinks)

    def _submit(self, item: Any, results: Results) -> None:
        request, job = completion.current_request(), completion.current_job()
        if not ItemAdapter.is_item(item):
            raise DropItem(
                f"{type(item).__qualname__} is no item: give a dict, Item, dataclass, attrs or pydantic"
            )
        if request is None:
            raise DropItem("the item belongs to no page; give items in callbacks")
        assert self._crawler.spider is not None
        try:
            record = item_record(
                item, page_of(request), completion.current_place(), self._crawler.spider.name
            )
            results.submit_item(record, job)
        except SinkRejected as error:
            reason = of_page(request.url, f"an item cannot be stored: {error}")
            if job is None:
                raise DropItem(reason) from error
            results.refuse(job, reason)


def _result_in(item: Any) -> dict[str, Any] | None:
    """The document of a page; a pipeline may have made a dict of the Result that the spider gave."""
    if isinstance(item, Result):
        return item.document()
    is_result = isinstance(item, dict) and item.get("url_id") and completion.current_job() is not None
    return item if is_result and completion.current_place() == 0 else None


async def _later(item: Any, sinks: Sinks) -> Any:
    # looked at again and again: records end in many places
    while not sinks.have_room:  # noqa: ASYNC110
        await asyncio.sleep(_LOOK_SECONDS)
    return item
