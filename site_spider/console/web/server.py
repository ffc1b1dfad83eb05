"""Puts the console together, and serves it until it is cancelled."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from site_spider.console.url_search import UrlSearch
from site_spider.console.watch import FleetWatch
from site_spider.console.web.dead_letters import LettersAtHand
from site_spider.console.web.guard import Guard
from site_spider.console.web.handlers import Handlers
from site_spider.console.web.listening import Listening
from site_spider.console.web.rendering import Rendering
from site_spider.console.web.sessions import Sessions
from site_spider.errors import ConfigError

_LARGEST_FORM_BYTES = 100_000
_KEEP_ALIVE_SECONDS = 30.0
_CLOSE_SECONDS = 2.0


def application(
    listening: Listening,
    watch: FleetWatch,
    dead_letters: LettersAtHand,
    search: UrlSearch,
    redact: Callable[[str], str],
    check_order: Callable[[str], None] = lambda _verb: None,
) -> web.Application:
    """The app, checked and wired. Raises ConfigError."""
    listening.check()
    sessions = Sessions(listening.token)
    guard = Guard(listening, sessions)
    handlers = Handlers(watch, Rendering(redact), sessions, guard, dead_letters, search, check_order)
    app = web.Application(middlewares=[guard.middleware], client_max_size=_LARGEST_FORM_BYTES)
    app.add_routes(handlers.routes())
    return app


async def serve(
    app: web.Application, listening: Listening, watch: FleetWatch, started: Callable[[str], None]
) -> None:
    """Serve until cancelled; `started` hears the address. Raises ConfigError."""
    runner = web.AppRunner(
        app, access_log=None, keepalive_timeout=_KEEP_ALIVE_SECONDS, shutdown_timeout=_CLOSE_SECONDS
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, listening.host, listening.port, ssl_context=listening.tls())
        try:
            await site.start()
        except OSError as error:
            raise ConfigError(
                f"--host is {listening.host!r} and --port {listening.port}, but nothing can be served "
                f"there: {error}"
            ) from error
        host, port = runner.addresses[0][:2]
        scheme = "https" if listening.certificate else "http"
        started(f"{scheme}://[{host}]:{port}/" if ":" in host else f"{scheme}://{host}:{port}/")
        await watch.run()
    finally:
        await runner.cleanup()
        await watch.close()
