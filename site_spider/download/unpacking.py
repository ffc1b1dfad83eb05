"""Scrapy's middleware for compressed bodies, in steps and within bounds."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from io import BytesIO
from typing import Any

from scrapy import Request
from scrapy.crawler import Crawler
from scrapy.downloadermiddlewares.httpcompression import HttpCompressionMiddleware
from scrapy.exceptions import IgnoreRequest
from scrapy.http import Response, TextResponse
from scrapy.responsetypes import responsetypes

from site_spider.download.bodies import LARGE_BYTES, Bodies
from site_spider.engine.parts import part_of
from site_spider.engine.turns import Turns
from site_spider.page.unpack import CodingCut, CodingTooLarge, Pieces, unpacked

logger = logging.getLogger(__name__)


class SteppedHttpCompression(HttpCompressionMiddleware):
    """Unpacks small bodies in turns of the event loop, and large ones in a thread, one after the other.

    With the settings, statistics and log lines of Scrapy's. Of a body that ends before its coding does, what
    came is taken, as Scrapy's does.
    """

    def __init__(self, stats: Any = None, *, crawler: Crawler) -> None:
        super().__init__(stats, crawler=crawler)
        self._crawler = crawler

    def process_response(  # type: ignore[override] # may have to wait
        self, request: Request, response: Response
    ) -> Response | Coroutine[Any, Any, Response]:
        """As Scrapy's. What is not packed does not wait."""
        assert response.headers is not None
        if request.method == "HEAD" or b"Content-Encoding" not in response.headers:
            return response
        return self._unpacked(request, response)

    async def _unpacked(self, request: Request, response: Response) -> Response:
        headers = response.headers
        assert headers is not None
        codings, unknown = self._split_encodings(headers.getlist("Content-Encoding"))
        most = request.meta.get("download_maxsize", self._max_size)
        try:
            body = await self._body(request, response, [coding.decode("latin-1") for coding in codings], most)
        except CodingTooLarge as error:
            message = (
                f"Ignored response {response} because its body ({len(response.body)} B compressed, "
                f"{error.size_bytes} B decompressed so far) exceeded DOWNLOAD_MAXSIZE ({most} B) during "
                "decompression."
            )
            logger.warning(message)
            raise IgnoreRequest(message) from error
        self._tell(request, response, body, unknown)
        if unknown:
            headers["Content-Encoding"] = unknown
        else:
            del headers["Content-Encoding"]
        kind = responsetypes.from_args(headers=headers, url=response.url, body=body)
        changes: dict[str, Any] = {"body": body}
        if issubclass(kind, TextResponse):
            changes["encoding"] = None  # found anew in what was unpacked
        return response.replace(cls=kind, **changes)

    async def _body(self, request: Request, response: Response, codings: list[str], most: int) -> bytes:
        output = BytesIO()  # hands its bytes over without copying them
        pieces = unpacked(response.body, codings, most)
        try:
            if not await _fill_in_turns(output, pieces):
                bodies = part_of(self._crawler, Bodies)
                if bodies is not None:
                    await bodies.turn(request)
                await asyncio.to_thread(_fill, output, pieces)
                if bodies is not None:
                    bodies.weigh(request, output.tell())
                    bodies.handed_over(request)
        except CodingCut:
            if not output.tell():
                raise
            # as with Scrapy, and in browsers: what came is the page
        return output.getvalue()

    def _tell(self, request: Request, response: Response, body: bytes, unknown: list[bytes]) -> None:
        least = request.meta.get("download_warnsize", self._warn_size)
        if len(response.body) < least <= len(body):
            logger.warning(
                "%s body size after decompression (%d B) is larger than the download warning size (%d B).",
                response,
                len(body),
                least,
            )
        if unknown:
            self._warn_unknown_encoding(response, unknown)
        if self.stats:
            self.stats.inc_value("httpcompression/response_bytes", len(body))
            self.stats.inc_value("httpcompression/response_count")


async def _fill_in_turns(output: BytesIO, pieces: Pieces) -> bool:
    """False when there is more of it than is done on the event loop."""
    turns = Turns.of_running_loop()
    for piece in pieces:
        output.write(piece)
        if output.tell() >= LARGE_BYTES:
            return False
        if not turns.has_time():
            await turns.time()
    return True


def _fill(output: BytesIO, pieces: Pieces) -> None:
    for piece in pieces:
        output.write(piece)
