"""Serves /metrics, /healthz and /readyz of one process (SITE_METRICS_ADDRESS)."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler
from itertools import islice
from math import inf
from socketserver import ThreadingTCPServer
from typing import Any, Final, NamedTuple, Self

from site_spider import options, runtime
from site_spider.contracts.seed_log import Partition, PartitionProgress, SeedLog
from site_spider.engine.background import Pulse
from site_spider.errors import ConfigError, LogUnavailable, SiteSpiderError, TopicMissing
from site_spider.observe.metrics.catalogue import OWN, Form, exposition, form_for
from site_spider.observe.progress import lag_of, of_partition, total
from site_spider.observe.snapshot import Snapshot
from site_spider.options import SettingsView
from site_spider.outage import Outage, until_there

logger = logging.getLogger(__name__)

# --- A small HTTP server in threads of its own, which answers GET while the event loop is blocked --------
# Whoever connects costs little, whatever it sends: a few connections at a time, a few seconds for each, the
# bounds of http.server for lines and headers, no body, one request for each connection.

_MOST_CONNECTIONS = 8
_SILENCE_SECONDS = 5.0
_LONGEST_SECONDS = 20.0  # of a connection, however it trickles


class Reply(NamedTuple):
    """What is sent."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[str], Reply]  # of the Accept header


class RouteServer(ThreadingTCPServer):
    """Serves some paths from the moment it is made. Raises OSError when it cannot listen."""

    allow_reuse_address = daemon_threads = True
    request_queue_size = 16

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.routes = routes
        self._places = runtime.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((host, port), _MetricsHandler)
        self._thread = runtime.Thread(target=self.serve_forever, name="site-metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self.shutdown()
        self.server_close()
        self._thread.join()

    def process_request(self, request: Any, client_address: Any) -> None:
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # no more threads
            self._places.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        end = runtime.Timer(_LONGEST_SECONDS, _break, (request,))
        end.name, end.daemon = "site-metrics-end", True
        try:
            end.start()
            super().process_request_thread(request, client_address)
        except RuntimeError:  # no more threads
            self.shutdown_request(request)
        finally:
            end.cancel()
            self._places.release()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as its base
        """Say so, unless whoever asked has gone, or is too slow; the base would print it."""
        if not isinstance(sys.exception(), OSError):
            logger.exception("A question about metrics could not be answered")


def _break(connection: socket.socket) -> None:
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _MetricsHandler(BaseHTTPRequestHandler):
    timeout = _SILENCE_SECONDS
    server_version = "site_spider"
    sys_version = ""
    server: RouteServer
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain; charset=utf-8"

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        if self.command != "GET":
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered here")
            return False
        return True

    def do_GET(self) -> None:
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            reply = Reply(HTTPStatus.NOT_FOUND, f"here are {', '.join(sorted(self.server.routes))}\n".encode())
        else:
            reply = route(self.headers.get("Accept", ""))
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.body)))
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(reply.body)

    def log_message(self, *_of_what: object) -> None:
        """Nothing: a scrape is no event."""


_SILENT_SECONDS: Final = 5.0  # of the event loop, beyond which the process is not healthy
_SNAPSHOT_SECONDS: Final = 2.0  # for the event loop to take one; then the last one is shown
_FRESH_SECONDS: Final = 1.0  # for which one answer serves all that ask

Measured = Callable[[], Coroutine[Any, Any, Snapshot]]


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
        taken = Outage(logger, f"Port {port} is taken", f"Port {port} is free", logging.DEBUG)
        listen = partial(asyncio.to_thread, RouteServer, host, port, routes)
        self._server = await until_there(listen, OSError, wait_seconds, taken)
        self._pulse.start()

    def show(self, measured: Measured, of_group: Callable[[], dict[str, Any]], unready: Callable[[], str]) -> None:
        """From now on there is a crawl; `unready` says why it is not ready, empty when it is."""
        self._measured, self._of_group, self._unready = measured, of_group, unready

    def hide(self) -> None:
        """The crawl ends: it is no longer ready, and what was measured last stays."""
        self._measured = None
        self._unready = lambda: "the crawl ends"

    async def close(self) -> None:
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
            made_at, body = self._texts.get(form, (-inf, b""))
            is_old = runtime.monotonic() - made_at >= _FRESH_SECONDS
            if is_old and (document := self._snapshot()) is not None:
                body = exposition([document], form)
                self._texts[form] = runtime.monotonic(), body
        if not body:
            return Reply(HTTPStatus.SERVICE_UNAVAILABLE, b"the crawl is not open yet\n")
        return Reply(HTTPStatus.OK, body, form.content_type)

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
        asking = measured()
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


# --- Reads SITE_METRICS_ADDRESS: where the metrics of this process are served ----------------------------

_WAIT_SECONDS: Final = 5.0  # for the port: the process before this one may hold it for a moment
NAME = "SITE_METRICS_ADDRESS"
_HOST_AND_PORT = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%]+)\]|(?P<host>[A-Za-z0-9._-]+)):(?P<port>[0-9]{1,5})")
_HIGHEST_PORT = 65_535


class MetricsAddress(NamedTuple):
    """Where this process listens."""

    host: str
    port: int

    @classmethod
    def read(cls, settings: SettingsView, environ: Mapping[str, str] = os.environ) -> Self | None:
        """None where it is empty. Process N of crawl_spider.sh has the N-th port. Raises ConfigError."""
        value = options.text(settings, NAME)
        if not value:
            return None
        found = _HOST_AND_PORT.fullmatch(value)
        if found is None:
            raise ConfigError(f"{NAME} is {value!r}, but must be host:port, such as 127.0.0.1:9410.")
        slot = environ.get("CRAWL_SPIDER_SLOT", "1")
        first = int(found["port"])
        port = first + (int(slot) - 1 if slot.isdecimal() and slot != "0" else 0)
        if first == 0 or port > _HIGHEST_PORT:
            raise ConfigError(
                f"{NAME} is {value!r}, which gives process {slot} port {port}, but a port is from 1 to "
                f"{_HIGHEST_PORT}. Name another one."
            )
        return cls(found["six"] or found["host"], port)

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


async def serve_metrics(settings: SettingsView, wait_seconds: float = _WAIT_SECONDS) -> Exporter | None:
    """Listen, if SITE_METRICS_ADDRESS asks for it. Raises ConfigError."""
    address = MetricsAddress.read(settings)
    if address is None:
        return None
    exporter = Exporter()
    try:
        await exporter.open(*address, wait_seconds)
    except OSError as error:
        raise ConfigError(
            f"{NAME}: {address.host} port {address.port} cannot be listened on: {error.strerror or error}. End who "
            "listens there, or name another address. Process N of crawl_spider.sh has the N-th port."
        ) from error
    logger.info("Metrics are served at http://%s/metrics", address)
    return exporter


# --- What is known of the whole group: its lag, the age of the lag, members, retention and dead letters --
# Asked of the seed log only while somebody scrapes, in a thread, and at most four times a minute.

_EVERY_SECONDS: Final = 15.0
_MOST_PARTITIONS: Final = 200  # whose first message is looked at


class GroupWatch:
    """One thread at a time looks."""

    def __init__(self, log: SeedLog, topics: tuple[str, ...], group: str, dead_letter_topic: str) -> None:
        self._log = log
        self._topics = topics
        self._group = group
        self._dead_letter_topic = dead_letter_topic
        self._look_at = float("-inf")
        self._found: dict[str, Any] = {}
        self._asking: runtime.Thread | None = None

    def look(self) -> dict[str, Any]:
        """As it was some seconds ago; empty at first, and while the log does not answer. Never waits."""
        if runtime.monotonic() >= self._look_at and (self._asking is None or not self._asking.is_alive()):
            self._look_at = runtime.monotonic() + _EVERY_SECONDS
            self._asking = runtime.Thread(target=self._ask, name="site-group", daemon=True)
            with suppress(RuntimeError):  # for want of threads
                self._asking.start()
        return self._found

    def lag(self) -> int:
        """Seeds of all topics that are not complete. Asks at once, and waits. Raises LogUnavailable."""
        return lag_of(self._log, self._topics, self._group)

    def _ask(self) -> None:
        found: dict[str, Any] = {}
        try:
            found = self._asked()
        except SiteSpiderError as error:
            logger.debug("Nothing is known of the group: %s", error)
        except Exception:  # metrics never end a crawl
            logger.exception("The group could not be asked about")
        self._found = found

    def _asked(self) -> dict[str, Any]:
        found: dict[str, Any] = {"lag_seeds": {}, "lag_age_seconds": {}}
        for topic in self._topics:
            with suppress(TopicMissing):  # it has nothing to do
                self._add(topic, found)
        with suppress(LogUnavailable):
            found["dead_letters"] = {self._dead_letter_topic: self._dead_letters()}
        return found

    def _add(self, topic: str, found: dict[str, Any]) -> None:
        parts = self._log.progress(topic, self._group)
        facts = self._log.facts(topic, self._group, _first_incomplete(parts))
        found["lag_seeds"][topic] = total(map(of_partition, parts)).lag
        found["lag_age_seconds"][topic] = max(0.0, runtime.time() - min(facts.written_at.values(), default=inf))
        if facts.members is not None:
            found["members"] = max(facts.members, found.get("members", 0))
        if (unowned := self._log.unowned((topic,), self._group)) is not None:
            found.setdefault("partitions_unowned", {})[topic] = len(unowned)
        if facts.retention_seconds is not None:
            found.setdefault("retention_seconds", {})[topic] = facts.retention_seconds

    def _dead_letters(self) -> int:
        try:
            parts = self._log.progress(self._dead_letter_topic, self._group)
        except TopicMissing:
            return 0  # it is made by the first one
        return sum(part.end - part.start for part in parts)


def _first_incomplete(parts: Sequence[PartitionProgress]) -> dict[Partition, int]:
    """Where the watermark of each partition stands that has something left."""
    left = (part for part in parts if of_partition(part).lag)
    return {
        part.partition: part.start if part.committed is None else max(part.start, part.committed.offset)
        for part in islice(left, _MOST_PARTITIONS)
    }
