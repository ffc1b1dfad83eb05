"""A small HTTP server in threads of its own, which answers GET while the event loop is blocked.

Whoever connects costs little, whatever it sends: a few connections at a time, a few seconds for each, the
bounds of http.server for lines and headers, no body, one request for each connection.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any, ClassVar, NamedTuple

from site_spider import runtime

logger = logging.getLogger(__name__)

_MOST_CONNECTIONS = 8
_SILENCE_SECONDS = 5.0
_LONGEST_SECONDS = 20.0  # of a connection, however it trickles


class Reply(NamedTuple):
    """What is sent."""

    status: HTTPStatus
    body: bytes
    content_type: str = "text/plain; charset=utf-8"


Route = Callable[[str], Reply]  # of the Accept header


class RouteServer:
    """Serves some paths from the moment it is made. Raises OSError when it cannot listen."""

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self._server = _BoundedServer(host, port, routes)
        self._thread = runtime.Thread(target=self._server.serve_forever, name="site-metrics", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Answer nobody any more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _BoundedServer(HTTPServer):
    request_queue_size = 16

    def __init__(self, host: str, port: int, routes: Mapping[str, Route]) -> None:
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.routes = routes
        self._places = runtime.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__((host, port), _MetricsHandler)

    def server_bind(self) -> None:
        # as HTTPServer's, without asking a name server who we are
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread, if there is a place."""
        if not self._places.acquire(blocking=False):
            self.shutdown_request(request)
            return
        work = runtime.Thread(
            target=self._process, args=(request, client_address), name="site-metrics-answer", daemon=True
        )
        try:
            work.start()
        except RuntimeError:  # no more threads
            self._places.release()
            raise

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002 - as its base
        """Say so; the base would print it."""
        logger.exception("A question about metrics could not be answered")

    def _process(self, request: socket.socket, client_address: Any) -> None:
        end = runtime.Timer(_LONGEST_SECONDS, _break, (request,))
        end.name, end.daemon = "site-metrics-end", True
        end.start()
        try:
            self.finish_request(request, client_address)
        except OSError:
            pass  # whoever asked has gone, or is too slow
        except Exception:
            logger.exception("A question about metrics could not be answered")
        finally:
            end.cancel()
            self.shutdown_request(request)
            self._places.release()


def _break(connection: socket.socket) -> None:
    with contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)


class _MetricsHandler(BaseHTTPRequestHandler):
    timeout = _SILENCE_SECONDS
    server_version = "site_spider"
    sys_version = ""
    server: _BoundedServer
    error_message_format = "%(code)d %(message)s\n"
    error_content_type = "text/plain; charset=utf-8"
    _wants_body: ClassVar[bool] = True

    def parse_request(self) -> bool:
        """As its base; nothing but GET passes."""
        if not super().parse_request():
            return False
        if self.command != "GET":
            self.send_error(HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered here")
            return False
        return True

    def do_GET(self) -> None:
        """Answer one of the routes."""
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            found = ", ".join(sorted(self.server.routes))
            reply = Reply(HTTPStatus.NOT_FOUND, f"here are {found}\n".encode())
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
