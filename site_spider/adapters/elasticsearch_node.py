"""Sends large requests in pieces, with the event loop's turn in between."""

from __future__ import annotations

from io import BytesIO
from typing import Any

from aiohttp import ClientSession
from elastic_transport import AiohttpHttpNode


class PiecewiseNode(AiohttpHttpNode):
    """The client's own node, but a body is handed to aiohttp as a file.

    As bytes it is copied to the socket in one go, and aiohttp warns of that above 1 MB.
    """

    def _create_aiohttp_session(self) -> None:
        super()._create_aiohttp_session()
        assert self.session is not None
        self.session = _Session(self.session)  # type: ignore[assignment]


class _Session:
    """As much of a session as the node uses."""

    def __init__(self, session: ClientSession) -> None:
        self._session = session
        self.close = session.close

    def request(self, method: str, url: str, *, data: bytes | None, **options: Any) -> Any:
        return self._session.request(method, url, data=None if data is None else BytesIO(data), **options)
