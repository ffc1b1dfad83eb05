"""Connections that bound the size of an answer, send large requests in pieces, and take new certificates."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from io import BytesIO
from typing import Any

from aiohttp import ClientResponse, ClientSession
from elastic_transport import AiohttpHttpNode, NodeConfig, Urllib3HttpNode

from site_spider.adapters.replaced_files import ReplacedFiles
from site_spider.outage import Outage

logger = logging.getLogger(__name__)

ANSWER_BYTES = 4_000_000  # to a bulk request, unpacked: 500 records, and 8 KB for why each was refused
PAGE_BYTES = 128_000_000  # of documents that are read back
_PIECE_BYTES = 1_000_000


class AnswerTooLarge(Exception):
    """The server sends more than an answer can have."""

    def __init__(self, limit_bytes: int) -> None:
        super().__init__(f"the answer has more than {limit_bytes} bytes")


class PiecewiseNode(AiohttpHttpNode):
    """The client's own node, but a body is handed to aiohttp as a file, and answers are bounded.

    As bytes a body is copied to the socket in one go, and aiohttp warns of that above 1 MB. The client's own
    node reads certificates once. Here connections are made anew when their files were replaced.
    """

    session: _Session | None  # type: ignore[assignment]

    def __init__(self, config: NodeConfig) -> None:
        self._files = ReplacedFiles((config.ca_certs, config.client_cert, config.client_key))
        self._old = Outage(
            logger,
            "New certificates of SITE_ELASTICSEARCH_OPTIONS cannot be used, so those before stay",
            "The certificates of SITE_ELASTICSEARCH_OPTIONS can be used",
        )
        super().__init__(config)

    async def perform_request(self, *arguments: Any, **options: Any) -> Any:  # type: ignore[override] # of any
        """As the client's own."""
        if self._files.is_due() and await asyncio.to_thread(self._files.look):
            await self._renew()
        return await super().perform_request(*arguments, **options)

    async def _renew(self) -> None:
        try:
            fresh = await asyncio.to_thread(type(self), self.config)
        except (OSError, ValueError) as error:  # a half of a pair is there, say
            self._old.goes_on(error)
            return
        self._files.use()
        self._old.is_over()
        self._ssl_context = fresh._ssl_context
        before, self.session = self.session, None
        if before is not None:
            await before.retire()
        logger.info("Connections to %s use the certificates that were replaced.", self.base_url)

    def _create_aiohttp_session(self) -> None:
        super()._create_aiohttp_session()
        assert self.session is not None
        self.session = _Session(self.session)  # type: ignore[arg-type]


class _Session:
    """As much of a session as the node uses."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self._under_way = 0
        self._is_retired = False
        self.close = session.close

    async def retire(self) -> None:
        """Close it when nothing is under way any more."""
        self._is_retired = True
        if not self._under_way:
            await self.close()

    @asynccontextmanager
    async def request(
        self, method: str, url: str, *, data: bytes | None, **options: Any
    ) -> AsyncIterator[_BoundedResponse]:
        body = None if data is None else BytesIO(data)
        self._under_way += 1
        try:
            async with self._session.request(method, url, data=body, **options) as response:
                yield _BoundedResponse(response)
        finally:
            self._under_way -= 1
            if self._is_retired:
                await self.retire()


class _BoundedResponse:
    """As much of a response as the node uses."""

    def __init__(self, response: ClientResponse) -> None:
        self._content = response.content
        self.status, self.headers, self.release = response.status, response.headers, response.release

    async def read(self) -> bytes:
        """All of it. Raises AnswerTooLarge."""
        read = bytearray()
        async for piece in self._content.iter_any():
            read += piece
            if len(read) > ANSWER_BYTES:
                raise AnswerTooLarge(ANSWER_BYTES)
        return bytes(read)


class BoundedNode(Urllib3HttpNode):
    """The client's own node for threads, but answers are bounded."""

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.pool: Any = _Pool(self.pool)


class _Pool:
    """As much of a pool as the node uses."""

    def __init__(self, pool: Any) -> None:
        self._pool = pool
        self.close = pool.close

    def urlopen(self, method: str, target: str, **options: Any) -> Any:
        with closing(self._pool.urlopen(method, target, preload_content=False, **options)) as response:
            read = bytearray()
            while piece := response.read(_PIECE_BYTES):
                read += piece
                if len(read) > PAGE_BYTES:
                    raise AnswerTooLarge(PAGE_BYTES)
            response.release_conn()
            return _Read(response.status, response.headers, bytes(read))


class _Read:
    """A response whose body was read."""

    def __init__(self, status: int, headers: Any, data: bytes) -> None:
        self.status, self.headers, self.data = status, headers, data
