"""The methods of the middlewares that a request passes on the short way.

One of the places where we touch private parts of Scrapy, as engine_flow and engine_hooks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from scrapy import Request
from scrapy.core.engine import ExecutionEngine
from scrapy.exceptions import _InvalidOutput
from scrapy.http import Response
from scrapy.middleware import MiddlewareManager
from scrapy.spidermiddlewares.httperror import HttpErrorMiddleware

from site_spider.engine.unchecked import unchecked

Step = tuple[Callable[..., Any], dict[str, Any]]


def _with_spider(
    engine: ExecutionEngine, manager: MiddlewareManager, method: Callable[..., Any]
) -> dict[str, Any]:
    return {"spider": engine.spider} if method in manager._mw_methods_requiring_spider else {}


def steps(engine: ExecutionEngine, name: str) -> list[Step]:
    """The methods of the downloader middlewares of one kind, and what they want besides."""
    manager = engine.downloader.middleware
    methods = [method for method in manager.methods[name] if method]
    return [(unchecked(method), _with_spider(engine, manager, method)) for method in methods]


def checked(method: Callable[..., Any], result: Any) -> Response | Request:
    """What a downloader middleware gave. Raises as Scrapy does for anything else."""
    if not isinstance(result, Response | Request):
        raise _InvalidOutput(
            f"Middleware {method.__qualname__} must return a Response or a Request, got {type(result)}"
        )
    return result


def output_steps(engine: ExecutionEngine) -> list[Callable[..., Any]] | None:
    """What spider middlewares do with output; None when one of them, or a pipeline, may wait.

    Also when one has something to say to errors, but for Scrapy's own that deals with HttpError.
    """
    manager = engine.scraper.spidermw
    if any(inspect.iscoroutinefunction(method) for method in engine.scraper.itemproc.methods["process_item"]):
        return None
    found: list[Callable[..., Any]] = []
    for middleware in reversed(manager.middlewares):
        if hasattr(middleware, "process_spider_exception") and type(middleware) is not HttpErrorMiddleware:
            return None
        method = getattr(middleware, "process_spider_output", None)
        if method is None:
            continue
        if not inspect.isgeneratorfunction(inspect.unwrap(method)) or _with_spider(engine, manager, method):
            return None
        found.append(unchecked(method))
    return found
