"""A forward proxy on loopback, for http and, by CONNECT, for https; and a site that wants one."""

from __future__ import annotations

import socket
import ssl
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingTCPServer
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

from tests.authority import pass_on

OUTGOING = "127.0.0.77"  # where connections of a proxy come from: the site tells them by it


class Seen(NamedTuple):
    method: str
    target: str
    authorization: str | None  # Proxy-Authorization
    peer: str


class LoopbackServer(ThreadingTCPServer):
    """Listens in a thread, as a context manager."""

    daemon_threads = True
    request_queue_size = 100

    def __init__(self, handler: Any, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None) -> None:
        super().__init__((host, 0), handler)
        self.port = self.server_address[1]
        self.seen: list[Seen] = []
        if tls is not None:  # the handshake waits for the thread of the connection
            self.socket = tls.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def __enter__(self) -> Self:
        threading.Thread(target=self.serve_forever, args=[0.05], daemon=True).start()
        return self

    def __exit__(self, *_error: object) -> None:
        self.shutdown()
        self.server_close()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that has gone is no error."""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Any

    def parse_request(self) -> bool:
        if not super().parse_request():
            return False
        said = self.headers.get("Proxy-Authorization")
        self.server.seen.append(Seen(self.command, self.path, said, self.client_address[0]))
        return True

    def tell(self, status: int, body: str, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Type": "text/html", "Content-Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_said: object) -> None:
        """Silent."""


class ShyHandler(Handler):
    def do_GET(self) -> None:
        if self.client_address[0] == OUTGOING:
            self.tell(200, f"<p>{self.path}")
        else:
            self.tell(403, "<p>who are you?")


class ProxyHandler(Handler):
    def do_GET(self) -> None:
        self.close_connection = True
        if self.headers.get("Proxy-Authorization") == self.server.wanted:
            self.forward()
        else:
            self.tell(407, "<p>who?", Proxy_Authenticate='Basic realm="x"')

    def do_CONNECT(self) -> None:
        self.do_GET()

    def forward(self) -> None:
        is_tunnel = self.command == "CONNECT"
        parts = urlsplit(f"//{self.path}" if is_tunnel else self.path)
        place = str(parts.hostname), parts.port or 80
        with socket.create_connection(place, source_address=(OUTGOING, 0)) as going:
            if is_tunnel:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            else:
                head = f"GET {parts.path} HTTP/1.1\r\nHost: {parts.netloc}\r\nConnection: close\r\n\r\n"
                going.sendall(head.encode())
            threading.Thread(target=pass_on, args=(self.connection, going), daemon=True).start()
            pass_on(going, self.connection)


class ShySite(LoopbackServer):
    """403 for whoever comes directly, a page for whoever comes through a proxy."""

    def __init__(self, host: str, tls: ssl.SSLContext | None = None) -> None:
        super().__init__(ShyHandler, host, tls)


class LocalProxy(LoopbackServer):
    """Wants credentials, if it was given any."""

    def __init__(self, credentials: str = "") -> None:
        super().__init__(ProxyHandler)
        self.wanted = f"Basic {b64encode(credentials.encode()).decode()}" if credentials else None
