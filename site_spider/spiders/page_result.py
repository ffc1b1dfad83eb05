"""What the result of a page says of the answer."""

from __future__ import annotations

from datetime import UTC
from json.encoder import encode_basestring as quoted

from scrapy import Request
from scrapy.http import Headers, Response

from site_spider import meta_keys, runtime
from site_spider.download.proxies.service import proxied_by
from site_spider.frontier.retry import describe_retries, describe_status
from site_spider.page.decode import media_type
from site_spider.page.links import Page
from site_spider.results.document import Result

_TYPE_BYTES = 1_024  # of a Content-Type; no type is longer


def describe_response(result: Result, response: Response, page: Page) -> None:
    """Fill in what the answer says."""
    assert response.headers is not None
    result.status = response.status
    result.headers = headers_json(response.headers)
    result.body = page.kept.text
    result.body_base64 = page.kept.base64
    result.body_truncated = page.kept.truncated
    result.description = describe_status(response.status)
    if result.description and (reason := response.meta.get(meta_keys.NOT_FOLLOWED)):
        result.description += f", not followed: {reason}"
    if result.description:
        result.description += describe_retries(response.meta)
    result.final_url = response.url
    result.content_type = media_type(content_type_of(response)) or None
    result.encoding = page.encoding if response.body else None
    result.response_size = len(response.body)
    latency_seconds = response.meta.get("download_latency")
    result.latency_ms = None if latency_seconds is None else round(latency_seconds * 1000, 1)


def describe_request(result: Result, request: Request, spider: str) -> None:
    """Fill in what is known of the last attempt, whatever came of it."""
    result.retries = request.meta.get("retry_times", 0)
    result.redirects = request.meta.get("redirect_times", 0)
    result.final_url = request.url
    result.proxy = proxied_by(request)
    result.spider = spider
    result.fetched_at = runtime.now(UTC).isoformat(timespec="milliseconds")


def headers_json(headers: Headers) -> str:
    """A JSON object of name -> list of values, in the order of the answer, repeated ones intact."""
    lines = [
        f"{quoted(name.decode('latin-1'))}: [{', '.join([quoted(v.decode('latin-1')) for v in values])}]"
        for name, values in dict.items(headers)
    ]
    return f"{{{', '.join(lines)}}}"


def content_type_of(response: Response) -> str | None:
    """The header Content-Type, if there is one."""
    value = response.headers.get("Content-Type") if response.headers else None
    return None if value is None else value[:_TYPE_BYTES].decode("latin-1")
