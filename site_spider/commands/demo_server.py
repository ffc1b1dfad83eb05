"""Serves the sample site on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from site_spider import runtime
from site_spider.commands.demo_site import HOSTS, page
from site_spider.errors import ConfigError

_PORT_TRIES = 20
_POLL_SECONDS = 0.05  # how soon a server notices that it is to stop


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "Town/1.0"
    timeout = 30  # seconds that an idle connection is kept

    def do_GET(self) -> None:
        """As http.server asks."""
        host = self.connection.getsockname()[0]
        answer = page(host, self.path.partition("?")[0])
        runtime.sleep(answer.delay_seconds)  # each connection has a thread of its own
        self.send_response(answer.status)
        self.send_header("Content-Type", answer.content_type)
        self.send_header("Content-Length", str(len(answer.body)))
        if answer.location is not None:
            self.send_header("Location", answer.location)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer.body)

    do_HEAD = do_GET  # noqa: N815 - the name that http.server asks for

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in http.server
        """Says nothing: what was fetched stands in the results."""


class _DemoServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no error."""


@contextmanager
def serving(port: int = 0) -> Iterator[int]:
    """Serve all hosts on one port, a free one unless it is given; yields it. Raises ConfigError."""
    with ExitStack() as stack:
        servers = _bound(stack, port)
        for server in servers:
            runtime.Thread(target=server.serve_forever, args=[_POLL_SECONDS], daemon=True).start()
            stack.callback(server.shutdown)
        yield int(servers[0].server_address[1])


def _bound(stack: ExitStack, port: int) -> list[_DemoServer]:
    """A server for each host. The port that the first one gets may be taken on another."""
    for left in range(_PORT_TRIES, 0, -1):
        with ExitStack() as attempt:
            try:
                servers: list[_DemoServer] = []
                for host in HOSTS:
                    wanted = servers[0].server_address[1] if servers else port
                    servers.append(attempt.enter_context(_DemoServer((host, int(wanted)), _Handler)))
            except OSError as error:
                if port or left == 1:
                    raise ConfigError(
                        f"--port is {port}, but it cannot be served on {host}: {error}"
                    ) from error
                continue
            stack.push(attempt.pop_all())
            return servers
    raise AssertionError("unreachable")
