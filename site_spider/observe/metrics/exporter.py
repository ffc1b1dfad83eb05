"""Serves /metrics, /healthz and /readyz of one process (SITE_METRICS_ADDRESS)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import CancelledError
from http import HTTPStatus
from typing import Any, Final

from site_spider import runtime
from site_spider.observe.metrics.exposition import Form, exposition, form_for
from site_spider.observe.metrics.http_server import Reply, Route, RouteServer
from site_spider.observe.metrics.pulse import Pulse
from site_spider.observe.metrics.readings import OWN
from site_spider.observe.snapshot import Snapshot

logger = logging.getLogger(__name__)

_SILENT_SECONDS: Final = 5.0  # of the event loop, beyond which the process is not healthy
_SNAPSHOT_SECONDS: Final = 2.0  # for the event loop to take one; then the last one is shown
_FRESH_SECONDS: Final = 1.0  # for which one answer serves all that ask

Measured = Callable[[], Awaitable[Snapshot]]


class Exporter:
    """Opened before anything else, so that /healthz answers while servers are waited for."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._pulse = Pulse()
        self._lock = runtime.Lock()  # one snapshot and one text at a time
        self._measured: Measured | None = None
        self._of_group: Callable[[], dict[str, Any]] = dict
        self._unready: Callable[[], str] = lambda: "the crawl is not open yet"
        self._last: Snapshot | None = None
        self._texts: dict[Form, tuple[float, bytes]] = {}
        self._server: RouteServer | None = None

    async def open(self, host: str, port: int, wait_seconds: float) -> None:
        """Listen, waiting so long for the port. Raises OSError."""
        routes = {"/metrics": self._metrics, "/healthz": self._healthz, "/readyz": self._readyz}
        self._server = await asyncio.to_thread(_listening, host, port, wait_seconds, routes)
        self._pulse.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        assert self._server is not None, "it is not open"
        return self._server.port

    def show(
        self, measured: Measured, of_group: Callable[[], dict[str, Any]], unready: Callable[[], str]
    ) -> None:
        """From now on there is a crawl; `unready` says why it is not ready, empty when it is."""
        self._measured, self._of_group, self._unready = measured, of_group, unready

    def hide(self) -> None:
        """The crawl ends: it is no longer ready, and what was measured last stays."""
        self._measured = None
        self._unready = lambda: "the crawl ends"

    async def close(self) -> None:
        """Answer nobody any more."""
        self._pulse.stop()
        if self._server is not None:
            await asyncio.to_thread(self._server.close)

    # --- on threads of the server ---------------------------------------------------------------------

    def _healthz(self, _accept: str) -> Reply:
        silent = self._pulse.silent_seconds()
        if silent > _SILENT_SECONDS:
            said = f"the event loop has not turned for {silent:.1f} s\n"
            return Reply(HTTPStatus.SERVICE_UNAVAILABLE, said.encode())
        return Reply(HTTPStatus.OK, b"ok\n")

    def _readyz(self, accept: str) -> Reply:
        reason = self._unready()
        if reason:
            return Reply(HTTPStatus.SERVICE_UNAVAILABLE, f"{reason}\n".encode())
        return self._healthz(accept)

    def _metrics(self, accept: str) -> Reply:
        form = form_for(accept)
        with self._lock:
            body = self._text(form)
        if body is None:
            return Reply(HTTPStatus.SERVICE_UNAVAILABLE, b"the crawl is not open yet\n")
        return Reply(HTTPStatus.OK, body, form.content_type)

    def _text(self, form: Form) -> bytes | None:
        made_at, text = self._texts.get(form, (float("-inf"), b""))
        if runtime.monotonic() - made_at < _FRESH_SECONDS:
            return text
        document = self._snapshot()
        if document is None:
            return None
        text = exposition([document], form)
        self._texts[form] = runtime.monotonic(), text
        return text

    def _snapshot(self) -> Snapshot | None:
        """The present one; the last one, with how long the loop is silent, when there is no present one."""
        silent = self._pulse.silent_seconds()
        if self._measured is not None and silent < _SNAPSHOT_SECONDS:
            self._last = self._asked(self._measured) or self._last
        if self._last is None:
            return None
        own = {**self._last[OWN], "loop_silent_seconds": silent, "group": self._of_group()}
        return {**self._last, OWN: own}

    def _asked(self, measured: Measured) -> Snapshot | None:
        async def ask() -> Snapshot:
            return await measured()

        asking = ask()
        try:
            asked = asyncio.run_coroutine_threadsafe(asking, self._loop)
        except RuntimeError:  # the loop is closed
            asking.close()
            return None
        try:
            return asked.result(_SNAPSHOT_SECONDS)
        except (TimeoutError, CancelledError):
            asked.cancel()
            return None


def _listening(host: str, port: int, seconds: float, routes: Mapping[str, Route]) -> RouteServer:
    """A process that ends may hold the port for a moment still."""
    deadline = runtime.monotonic() + seconds
    while True:
        try:
            return RouteServer(host, port, routes)
        except OSError:
            if runtime.monotonic() >= deadline:
                raise
        runtime.sleep(0.1)
