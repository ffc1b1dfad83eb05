"""Items pass the pipelines as in Scrapy."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from scrapy.exceptions import ScrapyDeprecationWarning
from scrapy.pipelines import ItemPipelineManager
from twisted.internet.defer import Deferred, succeed

from site_spider.engine.callback_guard import CallbackCancelled, SafeItemProcessor


class Same:
    def process_item(self, item: Any) -> Any:
        return item


class Other:
    def process_item(self, item: Any) -> Any:
        return {**item, "other": True}


class Later:
    async def process_item(self, item: Any) -> Any:
        await asyncio.sleep(0)
        item["later"] = True
        return item


class WithSpider:
    def process_item(self, item: Any, spider: Any) -> Any:
        return {**item, "spider": spider}


class WithDeferred:
    def process_item(self, item: Any) -> Deferred[Any]:
        return succeed({**item, "deferred": True})


class Nothing:
    def process_item(self, item: Any) -> None:
        return None


class Cancelled:
    def process_item(self, item: Any) -> Any:
        raise asyncio.CancelledError


CRAWLER: Any = SimpleNamespace(spider="spider")


@pytest.mark.filterwarnings("ignore::scrapy.exceptions.ScrapyDeprecationWarning")
@pytest.mark.parametrize(
    "pipelines", [[], [Same, Same], [Other, Same], [Later, Other], [Same, WithSpider], [Later, Nothing, Same]], ids=str
)
def test_items_come_out_as_from_scrapy(pipelines: list[type]) -> None:
    """In order, awaited where a pipeline has to be, with the spider where it wants that."""

    def passed(kind: type[ItemPipelineManager]) -> Any:
        manager = kind(*(pipeline() for pipeline in pipelines), crawler=CRAWLER)
        return asyncio.run(manager.process_item_async({"a": 1}))

    assert passed(SafeItemProcessor) == passed(ItemPipelineManager)


def test_the_item_itself_comes_out() -> None:
    """What a pipeline hands on is not copied."""
    item = {"a": 1}
    assert asyncio.run(SafeItemProcessor(Same(), crawler=CRAWLER).process_item_async(item)) is item


def test_a_pipeline_that_returns_a_deferred_is_named() -> None:
    """As Scrapy does, which will not take them for ever."""
    work = SafeItemProcessor(WithDeferred(), crawler=CRAWLER).process_item_async({})
    with pytest.warns(ScrapyDeprecationWarning, match=r"WithDeferred\.process_item returned a Deferred"):
        assert asyncio.run(work) == {"deferred": True}


def test_a_stray_cancelled_error_is_an_ordinary_one() -> None:
    """Else the items that follow would vanish."""
    with pytest.raises(CallbackCancelled):
        asyncio.run(SafeItemProcessor(Cancelled(), crawler=CRAWLER).process_item_async({}))
