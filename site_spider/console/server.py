"""Puts the console together, and serves it until it is cancelled."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.typedefs import Handler
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from site_spider import runtime
from site_spider.console import pages
from site_spider.console.access import FORM_TOKEN, LOGIN, SESSION, Guard, Listening, Sessions
from site_spider.console.fleet import View, duration
from site_spider.console.url_search import UrlSearch
from site_spider.console.watch import VERBS, FleetWatch
from site_spider.contracts.seed_log import Message, Partition, SeedLog
from site_spider.dead_letter_replay import Letter, Replay, newest
from site_spider.errors import ConfigError, LogUnavailable, SeedError, SiteSpiderError
from site_spider.installation import resource
from site_spider.observe.frontier_socket import METRICS_QUESTION
from site_spider.observe.metrics.catalogue import exposition, form_for
from site_spider.seed.fields import identifier
from site_spider.seed.topics import CrawlTopics
from site_spider.text import escaped, plural

# --- Dead letters for the page of failures: read in a thread, kept for some seconds, one replay at a time

_MOST = 200
_FRESH_SECONDS = 5.0


class DeadLetterCache:
    """Of one crawl."""

    def __init__(self, log: SeedLog, topics: CrawlTopics) -> None:
        self.topic = topics.dead_letters
        self._log = log
        self._topics = topics
        self._known: list[Letter] = []
        self._trouble = ""
        self._read_at = 0.0
        self._one = asyncio.Lock()

    async def newest(self) -> tuple[list[Letter], str]:
        """The newest, and what was in the way of reading them."""
        async with self._one:
            if runtime.monotonic() - self._read_at < _FRESH_SECONDS:
                return self._known, self._trouble
            self._trouble = ""
            try:
                self._known = await asyncio.to_thread(newest, self._log, self.topic, _MOST)
            except LogUnavailable as error:
                self._trouble = f"The dead letters shown may be old: {error}"
            self._read_at = runtime.monotonic()  # all who wait while the log is away are told at once
            return self._known, self._trouble

    async def put_back(self, chosen: Sequence[tuple[int, int]]) -> str:
        """Put back what stands at these partitions and offsets; says what happened. Raises LogUnavailable."""
        complaints: list[str] = []
        places: dict[Partition, set[int]] = {}
        for number, offset in chosen:
            places.setdefault(Partition(self.topic, number), set()).add(offset)

        def complain(message: Message, reason: str) -> None:
            complaints.append(f"{message.partition.number}:{message.offset} {reason}")

        replay = Replay(self._log, self.topic, complain, self._topics)
        async with self._one:
            self._read_at = 0.0
            await asyncio.to_thread(replay.run, places)
        said = f"{plural(replay.replayed, 'dead letter')} of {len(chosen)} put back"
        return f"{said}; not: {'; '.join(complaints)}" if complaints else f"{said}."


# --- rendering: what values look like on a page ----------------------------------------------------------

_CLOCK = len("2026-01-02 03:04:05")
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def _templates() -> Environment:
    """Every value is escaped."""
    templates = Environment(
        loader=FileSystemLoader(resource("console") / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters.update(
        number=number, size=size, duration=_or_dash(duration), clock=clock, words=words, plain=plain
    )
    return templates


def _or_dash(shown: Callable[[Any], str]) -> Callable[[Any], str]:
    """What shows a value, or that there is none."""
    return lambda value: "-" if value is None else shown(value)


@_or_dash
def number(value: float) -> str:
    """With separators; a small fraction is kept."""
    return f"{value:,.1f}" if isinstance(value, float) and value < 100 else f"{value:,.0f}"


@_or_dash
def size(value: float) -> str:
    """Bytes in the unit that fits."""
    for unit in _UNITS:
        if value < 1000 or unit == _UNITS[-1]:
            break
        value /= 1000
    return f"{value:,.0f} {unit}" if unit == "B" or value >= 100 else f"{value:,.1f} {unit}"


def clock(value: str | None) -> str:
    """A moment for people, in UTC."""
    return "-" if not value else escaped(value.replace("T", " ")[:_CLOCK])


def words(value: str) -> str:
    """A name of ours for people."""
    return value.replace("_", " ")


@_or_dash
def plain(value: object) -> str:
    """Text of the web: control characters and marks that turn the direction of text become visible."""
    return escaped(str(value))


# --- handlers: what the console answers, page by page ----------------------------------------------------

logger = logging.getLogger(__name__)

Document = Mapping[str, Any]

_HOSTS, _MOST_HOSTS = 100, 1_000  # that are asked for; on their page
_LONGEST_QUERY = 300
_LONGEST_URL = 8_000
_LONGEST_ID = 1_000
_LARGEST_FORM_BYTES = 100_000
_KEEP_ALIVE_SECONDS = 30.0
_THREADS = 16  # more than wait for the log at a time: /healthz and /metrics need some while it is away
_CLOSE_SECONDS = 2.0
_ORDER_SECONDS = 5.0  # then the page says that it is under way
_PAGES = (
    ("overview", "/", "Overview"),
    ("tasks", "/tasks", "Tasks"),
    ("processes", "/processes", "Processes"),
    ("hosts", "/hosts", "Hosts"),
    ("failures", "/failures", "Failures"),
    ("sinks", "/sinks", "Sinks"),
    ("url", "/url", "Where is my URL"),
)
_PLACE = re.compile(r"(\d{1,9}):(\d{1,15})")


@dataclass
class Handlers:
    """One method a page."""

    _listening: Listening
    _watch: FleetWatch
    _dead_letters: DeadLetterCache
    _search: UrlSearch
    _redact: Callable[[str], str]
    _check_ends: Callable[[], None]  # raises ConfigError where nobody would hear of the end of a task

    def __post_init__(self) -> None:
        self._templates = _templates()
        self._sessions = Sessions(self._listening.token)
        self._guard = Guard(self._listening, self._sessions)
        self._one_search = asyncio.Lock()  # each reads megabytes
        self._one_order = asyncio.Lock()
        self._orders: set[asyncio.Task[str]] = set()  # under way

    def application(self) -> web.Application:
        app = web.Application(middlewares=[self._guard.middleware], client_max_size=_LARGEST_FORM_BYTES)
        app.add_routes(
            [
                *(web.get(path, self._shows(document)) for path, document in _SHOWN.items()),
                web.post("/tasks/order", self.order),
                web.get("/failures", self.failures),
                web.post("/failures/replay", self.replay),
                web.get("/url", self.url),
                web.get("/metrics", self.metrics),
                web.get("/healthz", self.healthz),
                web.get(LOGIN, self.login_form),
                web.post(LOGIN, self.login),
                web.static("/static", resource("console") / "static"),
            ]
        )
        return app

    async def serve(self, started: Callable[[str], None]) -> None:
        """Serve until cancelled; `started` hears the address. Raises ConfigError."""
        listening = self._listening
        runner = web.AppRunner(
            self.application(),
            access_log=None,
            keepalive_timeout=_KEEP_ALIVE_SECONDS,
            shutdown_timeout=_CLOSE_SECONDS,
            auto_decompress=False,  # no form is compressed
            logger=_logger_of_http(),
        )
        await runner.setup()
        asyncio.get_running_loop().set_default_executor(runtime.ThreadPoolExecutor(_THREADS))
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
            await self._watch.run()
        finally:
            await runner.cleanup()
            await asyncio.to_thread(self._watch.tasks.close)

    # --- pages ---------------------------------------------------------------------------------------

    def _shows(self, document: Callable[[View, web.Request], Document]) -> Handler:
        async def answer(request: web.Request) -> web.Response:
            hosts = _MOST_HOSTS if request.path == "/hosts" else _HOSTS
            return self._answer(request, document(self._look(hosts), request))

        return answer

    async def failures(self, request: web.Request) -> web.Response:
        letters, trouble = await self._dead_letters.newest()
        document = pages.failures(
            self._look(), letters, self._dead_letters.topic, _query(request, "reason"), _query(request, "wanted")
        )
        document["troubles"] += [trouble] if trouble else []
        return self._answer(request, document | {"said": _query(request, "said")})

    async def url(self, request: web.Request) -> web.Response:
        url = request.query.get("url", "").strip()[:_LONGEST_URL]
        task_id = request.query.get("task_id", "").strip()[:_LONGEST_ID]
        document: dict[str, Any] = pages.heading(self._look(), "url") | {
            "url": url, "task_id": task_id, "found": None, "owners": [], "refused": None
        }  # fmt: skip
        if url:
            try:
                async with self._one_search:
                    found = await asyncio.to_thread(self._search.find, url, task_id or None)
            except SeedError as error:
                document["refused"] = str(error)
            else:
                document |= {"found": found, "owners": self._owners(found["partition_name"])}
                document["troubles"] += found.pop("troubles")
        return self._answer(request, document)

    def _owners(self, partition: str | None) -> list[str]:
        living = self._watch.view().living
        return [state.name for state in living if partition is not None and partition in state.partitions]

    def _look(self, hosts: int = _HOSTS) -> View:
        self._watch.attend(hosts)
        return self._watch.view()

    def _answer(self, request: web.Request, document: Document) -> web.Response:
        if request.query.get("format") == "json":
            return self._json(document)
        return self._page(request, str(document["page"]), document)

    def _json(self, document: Document) -> web.Response:
        text = json.dumps(self._clean(document), ensure_ascii=True) + "\n"
        return web.Response(text=text, content_type="application/json", charset="utf-8")

    def _page(self, request: web.Request, name: str, document: Document) -> web.Response:
        session = request.get(SESSION, "")
        form = {"form_token": self._sessions.form_token(session) if session else "", "form_token_name": FORM_TOKEN}
        text = self._templates.get_template(f"{name}.html").render(d=self._clean(document), pages=_PAGES, **form)
        return web.Response(text=text, content_type="text/html", charset="utf-8")

    def _clean(self, value: Any) -> Any:
        """Without secrets of the settings."""
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, Mapping):
            return {self._clean(name): self._clean(each) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(each) for each in value]
        return value

    # --- changes -------------------------------------------------------------------------------------

    async def replay(self, request: web.Request) -> web.Response:
        form = await request.post()
        places = [_PLACE.fullmatch(str(value)) for value in form.getall("place", [])]
        chosen = [(int(place[1]), int(place[2])) for place in places if place is not None]
        if not chosen:
            said = "Nothing was chosen."
        else:
            try:
                said = await self._dead_letters.put_back(chosen)
            except SiteSpiderError as error:
                said = str(error)
        return self._see(f"/failures?{urlencode({'said': said[:_LONGEST_QUERY]})}#dead-letters")

    async def order(self, request: web.Request) -> web.Response:
        form = await request.post()
        verb, task_id = str(form.get("verb", "")), str(form.get("task_id", ""))[:_LONGEST_ID]
        lines = str(form.get("words", "")).splitlines()
        words = [line.strip() for line in lines if line.strip()]
        if verb not in VERBS:
            raise web.HTTPBadRequest(text=f"The verb must be one of {', '.join(VERBS)}.\n")
        if form.get("confirmed") != "yes":
            return self._answer(request, pages.order(self._look(), verb, task_id, words))
        try:
            if verb == "close" or any(word.removeprefix("webhook=") not in ("", word) for word in words):
                self._check_ends()
            identifier("the task's id", task_id)
            said = await self._ordered(verb, task_id, words)
        except LogUnavailable as error:  # perhaps behind the first of several steps
            said = f"The order may be carried out in part; give it again: {error}"
        except SiteSpiderError as error:
            said = f"Nothing was changed: {error}"
        query = urlencode({"id": task_id, "said": said[:_LONGEST_QUERY]})
        return self._see(f"/task?{query}")

    async def _ordered(self, verb: str, task_id: str, words: Sequence[str]) -> str:
        """What became of an order, or that it is under way."""

        is_told_of = pages.is_told_of(self._watch.view(), task_id)

        async def work() -> str:
            async with self._one_order:
                ordered = await asyncio.to_thread(self._watch.tasks.order, verb, task_id, words, is_told_of=is_told_of)
            with suppress(LogUnavailable):  # the watch looks again, and says so
                await self._watch.look_at_tasks()
            return ordered.said

        working = asyncio.create_task(work())
        self._orders.add(working)
        working.add_done_callback(self._order_ended)
        done, _ = await asyncio.wait([working], timeout=_ORDER_SECONDS)
        return working.result() if done else f"{verb} of task {task_id} is under way: it takes long"

    def _order_ended(self, order: asyncio.Task[str]) -> None:
        self._orders.discard(order)
        if not order.cancelled() and (error := order.exception()) is not None:
            logger.warning("An order of the console failed: %s", error)

    def _see(self, where: str) -> web.Response:
        return web.Response(status=303, headers={"Location": where})

    async def login_form(self, request: web.Request) -> web.Response:
        return self._page(request, "login", {"page": "login", "is_wrong": False})

    async def login(self, request: web.Request) -> web.Response:
        given = (await request.post()).get("token", "")
        if self._sessions.needs_token and not await self._guard.is_token(str(given)):
            response = self._page(request, "login", {"page": "login", "is_wrong": True})
            response.set_status(403)
            return response
        response = self._see("/")
        self._guard.set_cookie(request, response, self._sessions.new())
        return response

    # --- for programs --------------------------------------------------------------------------------

    async def metrics(self, request: web.Request) -> web.Response:
        answers = await self._watch.local_processes.ask_all(METRICS_QUESTION)
        form = form_for(request.headers.get("Accept", ""))
        silent = [group or self._watch.group for _, group in answers.silent]
        body = await asyncio.to_thread(exposition, [*answers.snapshots.values()], form, of_host=True, silent=silent)
        return web.Response(body=body, headers={"Content-Type": form.content_type})

    async def healthz(self, _request: web.Request) -> web.Response:
        running, silent, _ = await self._watch.local_processes.ask_all(b"0")
        is_healthy, mute = bool(running) and not silent, [pid for pid, _ in silent]
        document = {"healthy": is_healthy, "processes": len(running) + len(silent), "silent": mute}
        response = self._json(document)
        response.set_status(200 if document["healthy"] else 503)
        return response


def _logger_of_http() -> logging.Logger:
    """Without what is no HTTP: anybody can send that."""
    named = logging.getLogger(f"{__name__}.http")
    named.addFilter(_is_fault)
    return named


def _is_fault(record: logging.LogRecord) -> bool:
    return not (record.exc_info and isinstance(record.exc_info[1], HttpProcessingError))


def _query(request: web.Request, name: str) -> str:
    return request.query.get(name, "").strip()[:_LONGEST_QUERY]


_SHOWN: Mapping[str, Callable[[View, web.Request], Document]] = {
    "/": lambda view, _: pages.overview(view),
    "/tasks": lambda view, request: pages.tasks(view, _query(request, "wanted")),
    "/task": lambda view, request: pages.task(view, request.query.get("id", "")[:_LONGEST_ID], _query(request, "said")),
    "/processes": lambda view, request: pages.processes(view, _query(request, "wanted")),
    "/hosts": lambda view, request: pages.hosts(view, _query(request, "wanted"), _query(request, "reason")),
    "/sinks": lambda view, _: pages.sinks(view),
}
