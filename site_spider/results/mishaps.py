"""Remembers what went wrong after a download, for the failure result."""

from __future__ import annotations

from scrapy import signals
from scrapy.http import Response
from scrapy.signalmanager import SignalManager
from twisted.python.failure import Failure

from site_spider.ledger import completion
from site_spider.results.result import Result


class Mishaps:
    """Listens to Scrapy's signals of errors."""

    def __init__(self, manager: SignalManager) -> None:
        manager.connect(self._spider_error, signal=signals.spider_error)
        manager.connect(self._item_error, signal=signals.item_error)
        manager.connect(self._item_dropped, signal=signals.item_dropped)

    def _spider_error(self, failure: Failure, response: object) -> None:
        _note(f"{_name(failure)} in the spider: {_said(failure)}", response)

    def _item_error(self, item: object, failure: Failure, response: object) -> None:
        _note(f"{_name(failure)} in an item pipeline: {_said(failure)}", response, item)

    def _item_dropped(self, item: object, exception: BaseException, response: object) -> None:
        if isinstance(item, Result):  # what else a pipeline drops is not wanted, and that is all
            _note(f"the item was dropped: {exception}", response, item)


def _name(failure: Failure) -> str:
    return type(failure.value).__name__


def _said(failure: Failure) -> str:
    try:
        return str(failure.value)
    except Exception as error:  # noqa: BLE001 - a class of the spider's
        return f"its text cannot be had: {type(error).__name__}"


def _note(error: str, response: object, item: object = None) -> None:
    job = completion.current_job()
    if job is None:
        return
    job.error = error
    if isinstance(item, Result) and item.url_id == job.url_id:
        job.page = item
    if job.answer is None and isinstance(response, Response):
        job.answer = response
