"""`scrapy demo`: serves a sample site on loopback."""

from __future__ import annotations

import argparse
import json
import signal
import sys
from base64 import b64decode
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from site_spider import runtime
from site_spider.commands.output import number
from site_spider.commands.site_command import SiteCommand
from site_spider.errors import ConfigError
from site_spider.installation import resource
from site_spider.seed.seed import seed_message
from site_spider.seed.topics import Tiers
from site_spider.service import config as parts

# --- The pages of the sample site: hosts of ten pages, and the failures of real sites --------------------
# Everything is the same at every run. A host is an address of its own on loopback, all on one port.

HOSTS: Mapping[str, tuple[str, tuple[str, ...]]] = {  # each with its name and its articles
    host: (found["name"], tuple(found["articles"]))
    for host, found in json.loads(resource("demo/hosts.json").read_text(encoding="utf-8")).items()
}
NOBODY = "127.0.0.6"  # an address on which nothing listens
SLOW_SECONDS = 1.5
TROUBLE: Mapping[str, tuple[str, ...]] = {  # paths that the first pages link to beside their articles
    "127.0.0.2": ("/moved", "/missing"),
    "127.0.0.3": ("/cafe", "/photo.png"),
    "127.0.0.4": ("/broken", "/missing"),
    "127.0.0.5": ("/slow", "/photo.png"),
}

_PICTURE = b64decode(  # blue, 8 x 8 pixels
    "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEUlEQVR4nGMwSJiAFTEMLQkACmxIAasRElQAAAAASUVORK5CYII="
)
_STYLE = "body{font-family:sans-serif;max-width:40em;margin:2em auto}"


class DemoPage(NamedTuple):
    """An answer; `delay_seconds` passes before it is sent."""

    status: int
    body: bytes
    content_type: str = "text/html; charset=utf-8"
    location: str | None = None
    delay_seconds: float = 0.0


def page(host: str, path: str) -> DemoPage:
    """The answer of a host to a path."""
    name, articles = HOSTS[host]
    if path == "/":
        return _front(host, name, articles)
    number = path.removeprefix("/article/")
    if number.isascii() and number.isdigit() and 1 <= int(number) <= len(articles):
        return _article(name, articles, int(number))
    return _special(name, path)


def seeds(port: int) -> list[str]:
    """Lines for `scrapy seed`: every front page, some single pages, and an address where nobody is."""
    fronts = [f"http://{host}:{port}/" for host in HOSTS]
    single = f'{{"url": "http://127.0.0.2:{port}/article/1", "method": "HEAD", "meta": {{"url_id": "demo-head"}}}}'
    return [*fronts, single, f"http://127.0.0.3:{port}/no-such-page", f"http://{NOBODY}:{port}/"]


BAD_MESSAGES = (  # what other producers have been seen to send; each becomes a dead letter
    b'{"meta": {"task_id": "demo"}, "link": "http://127.0.0.2/"}',
    b"http://127.0.0.2/ is not JSON",
)


def _front(host: str, name: str, articles: tuple[str, ...]) -> DemoPage:
    links = [(f"/article/{number}", title) for number, title in enumerate(articles, start=1)]
    links += [(path, path.strip("/")) for path in TROUBLE[host]]
    items = "".join(f'<li><a href="{href}">{escape(title)}</a></li>' for href, title in links)
    return _html(name, f"<p>Welcome. Today on our pages:</p><ul>{items}</ul>")


def _article(name: str, articles: tuple[str, ...], number: int) -> DemoPage:
    following = number % len(articles) + 1
    text = f"{articles[number - 1]}. More about it was not made up. " * 20
    links = f'<p><a href="/">{escape(name)}</a> · <a href="/article/{following}">next</a></p>'
    return _html(f"{articles[number - 1]} – {name}", f"<p>{escape(text)}</p>{links}")


def _special(name: str, path: str) -> DemoPage:
    cafe = "<title>Café</title><p>Le café de la bibliothèque est ouvert.</p>"  # says its encoding in the header only
    pages = {
        "/moved": DemoPage(301, b"", location="/article/2"),
        "/cafe": DemoPage(200, cafe.encode("latin-1"), "text/html; charset=iso-8859-1"),
        "/photo.png": DemoPage(200, _PICTURE, "image/png"),
        "/slow": _html(f"The tide comes in – {name}", "<p>It took its time.</p>", delay_seconds=SLOW_SECONDS),
        "/broken": _html("Internal error", "<p>The till is jammed.</p>", status=500),
    }
    return pages.get(path) or _html("Not found", "<p>There is no such page.</p>", status=404)


def _html(title: str, body: str, **more: Any) -> DemoPage:
    head = f"<!doctype html><html><head><title>{escape(title)}</title><style>{_STYLE}</style></head>"
    page = DemoPage(200, f"{head}<body><h1>{escape(title)}</h1>{body}</body></html>".encode())
    return page._replace(**more)


# --- demo server: serves the sample site on loopback -----------------------------------------------------

_PORT_TRIES = 20
_POLL_SECONDS = 0.05  # how soon a server notices that it is to stop


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_version = "Town/1.0"
    timeout = 30  # seconds that an idle connection is kept

    def do_GET(self) -> None:
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
                    raise ConfigError(f"--port is {port}, but it cannot be served on {host}: {error}") from error
                continue
            stack.push(attempt.pop_all())
            return servers
    raise AssertionError("unreachable")


class Command(SiteCommand):
    """Serves until it is stopped."""

    summary = "Serve a sample site to crawl"
    description = (
        "Serves a small sample site on loopback (127.0.0.2 and up) until SIGTERM or Ctrl-C. Prints its seeds "
        "for `scrapy seed`. With --produce it puts them into the seed topic, together with two messages that "
        "are not valid seeds. To crawl the site, set SITE_ALLOW_PRIVATE_HOSTS=true."
    )
    examples = """
        scrapy demo
        scrapy demo --port 8000 > seeds.txt
        scrapy demo --produce
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        port = partial(number, least=0, most=65_535)
        parser.add_argument("--port", metavar="N", type=port, default=0, help="default: a free one")
        parser.add_argument("--produce", action="store_true", help="produce the seeds to the seed topic")

    def work(self, opts: argparse.Namespace) -> None:
        signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(0))
        with serving(opts.port) as port:
            lines = seeds(port)
            if opts.produce:
                self._produce(lines)
                print(f"produced {len(lines)} seeds and {len(BAD_MESSAGES)} bad messages")
            else:
                print("\n".join(lines))
            print(f"serving on port {port}", file=sys.stderr)
            sys.stdout.flush()
            while True:
                runtime.sleep(1)  # `signal.pause` would wait for ever when the signal comes just before it

    def _produce(self, lines: list[str]) -> None:
        topic = Tiers.of(self.options).main
        with closing(parts.seed_log(self.options)) as log, closing(log.producer()) as producer:
            messages = [seed_message(line, task_id="demo") for line in lines]
            sent = [producer.send(topic, key, value) for key, value in messages]
            sent += [producer.send(topic, None, value) for value in BAD_MESSAGES]
            for future in sent:
                future.result()
