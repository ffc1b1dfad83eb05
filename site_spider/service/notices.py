"""Tells somebody of troubles of this process without Prometheus (SITE_NOTIFY_URL): once, and when it is over.

A webhook is signed as that of a task, and reaches what a crawl may reach. `mailto:` goes by Scrapy's MAIL_*.
What cannot be told is tried again for some minutes. Nothing here holds up the crawl.
"""

from __future__ import annotations

import asyncio
import json
import logging
import smtplib
import ssl
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from email.message import EmailMessage
from email.utils import formatdate
from functools import partial
from typing import Any, Final
from urllib.parse import unquote

from scrapy.settings import BaseSettings

from site_spider import options, runtime, signed_post
from site_spider.engine.background import Background, apart
from site_spider.errors import ConfigError, SeedError
from site_spider.observe.snapshot import number, stats_of
from site_spider.page.url import check_url
from site_spider.service.config import guard_of
from site_spider.service.wiring import Parts
from site_spider.text import shown

logger = logging.getLogger(__name__)

URL: Final = "SITE_NOTIFY_URL"
NO_ITEMS: Final = "SITE_NOTIFY_NO_ITEMS_SECONDS"
_MAIL = "mailto:"
_LOOK_SECONDS = 5.0
_AWAY_SECONDS = _STANDS_SECONDS = 600.0
_PAUSE_SECONDS = 600.0  # from one notice of a trouble to the next that it has begun
_FREE_SHARE = 0.1  # of the memory, before it is enough again
_MOST_WAITING = 50
_MOST_ATTEMPTS = 6
_RETRY_SECONDS = 10.0  # doubled each time
_SECONDS = 15.0  # for one mail

Send = Callable[[Mapping[str, Any]], str]  # blocks; returns why it was not sent, or nothing


def sender(settings: BaseSettings, keys: tuple[bytes, ...]) -> Send | None:
    """What sends a notice; None without SITE_NOTIFY_URL. Raises ConfigError."""
    url = options.text(settings, URL)
    options.seconds(settings, NO_ITEMS)
    if not url:
        return None
    if url.startswith(_MAIL):
        return partial(_mail, settings, _addresses(url.removeprefix(_MAIL)))
    try:
        check_url(url)
    except SeedError as error:
        raise ConfigError(f"{URL} cannot be used: {error.reason.replace(shown(url), 'it')}") from None
    return partial(_post, url, signed_post.secret_of(keys), guard_of(settings))


def _addresses(text: str) -> list[str]:
    names = [unquote(name).strip() for name in text.partition("?")[0].split(",")]
    if not all("@" in name and name.isprintable() for name in names):
        raise ConfigError(f"{URL} names no addresses of mail; write some behind the colon, such as ops@host.example")
    return names


def _post(url: str, secret: bytes, may_reach: signed_post.MayReach, said: Mapping[str, Any]) -> str:
    return signed_post.post(url, said, secret, may_reach, f"{said['process']}.{said['number']}")[1]


def _message(sent_by: str, names: list[str], said: Mapping[str, Any]) -> EmailMessage:
    message = EmailMessage()
    message["From"], message["To"] = sent_by, ", ".join(names)
    message["Date"] = formatdate(said["at"])  # nobody on the way has to add one
    message["Subject"] = f"{said['spider']} on {said['host_name']}: {said['trouble']} {said['event']}"
    message.set_content(f"{said['says']}\n\n{json.dumps(said, indent=1)}\n")
    return message


def _mail(settings: BaseSettings, names: list[str], said: Mapping[str, Any]) -> str:
    is_tls = settings.getbool("MAIL_SSL")
    kind = partial(smtplib.SMTP_SSL, context=ssl.create_default_context()) if is_tls else smtplib.SMTP
    try:
        with kind(settings["MAIL_HOST"], settings.getint("MAIL_PORT"), timeout=_SECONDS) as server:
            if settings.getbool("MAIL_TLS"):
                server.starttls(context=ssl.create_default_context())
            if settings["MAIL_USER"]:
                server.login(settings["MAIL_USER"], settings["MAIL_PASS"] or "")
            if refused := server.send_message(_message(settings["MAIL_FROM"], names, said)):
                logger.warning("A notice was sent, but not to these addresses of %s: %s", URL, refused)
    except (OSError, ValueError) as error:  # an SMTPException is an OSError
        return f"{type(error).__name__}: {error}"
    return ""


@dataclass
class Troubles:
    """What is wrong with a crawl at a moment. On the event loop's thread only."""

    _parts: Parts
    _no_items_seconds: float
    _rss_bytes: Callable[[], int | None]
    _since: dict[str, tuple[object, float]] = field(default_factory=dict)
    _is_memory_full: bool = False

    def now(self, now: float) -> dict[str, str]:
        return dict(self._found(now))

    def _found(self, now: float) -> Iterator[tuple[str, str]]:
        yield from self._memory()
        sinks = [(f"sink {one.sink.name}", one.available) for one in self._parts.sinks]  # some also for items
        sinks.append(("sink kafka", not self._parts.commits.sink_away))
        away = {name: (name, False) in sinks for name, _ in sinks} | {"seed log": self._parts.intake.is_away}
        for name, is_away in away.items():
            if is_away and self._lasts(name, is_away, now) >= _AWAY_SECONDS:
                yield name, f"the {name} is away for {_AWAY_SECONDS:.0f} s"
            elif not is_away:
                self._since.pop(name, None)
        if any(away.values()):
            self._since.pop("stands", None)  # its time begins anew
        else:
            yield from self._stands(now)
        has_partitions = bool(self._parts.completion.ledger.partitions())
        items = self._parts.watched.counted.pages.items, has_partitions
        most, seconds = self._no_items_seconds, self._lasts("items", items, now)
        if has_partitions and seconds >= most > 0:
            yield "no items", f"no item was written for {NO_ITEMS}={most:g}"

    def _memory(self) -> Iterator[tuple[str, str]]:
        limit, used = self._parts.config.memory_soft_bytes, self._rss_bytes() or 0
        self._is_memory_full = used > limit * (1 - _FREE_SHARE * self._is_memory_full) > 0
        if self._is_memory_full:
            yield "memory", f"{used} bytes are used, above SITE_MEMORY_SOFT_BYTES={limit}"

    def _stands(self, now: float) -> Iterator[tuple[str, str]]:
        ledger = self._parts.completion.ledger
        answers = number(stats_of(self._parts.watched), "downloader/response_count")
        done = sum(ledger.outcomes.values()), answers, ledger.in_flight == 0
        if self._lasts("stands", done, now) >= _STANDS_SECONDS and ledger.in_flight:
            cause = self._parts.watched.pauses.now().said
            said = f"{ledger.in_flight} seeds are in flight, and nothing was done for {_STANDS_SECONDS:.0f} s"
            yield "stands", f"{said}{f': {cause}' if cause else ''}"

    def _lasts(self, name: str, state: object, now: float) -> float:
        before, since = self._since.get(name, (None, now))
        if before != state:
            since = now
        self._since[name] = state, since
        return now - since


@dataclass
class Notifier:
    """On the event loop's thread only."""

    _troubles: Callable[[float], Mapping[str, str]]
    _send: Send
    _document: Mapping[str, Any]  # of this process
    _background: Background

    def __post_init__(self) -> None:
        self._begun: dict[str, float] = {}  # that were told, and are not over
        self._told_at: dict[str, float] = {}
        self._number = 0
        self._waiting: deque[dict[str, Any]] = deque(maxlen=_MOST_WAITING)
        self._sending: asyncio.Task[None] | None = None
        self._look_at = 0.0

    def look(self) -> None:
        now = runtime.monotonic()
        if now < self._look_at:
            return
        self._look_at = now + _LOOK_SECONDS
        found = self._troubles(now)
        for name, says in found.items():
            if name not in self._begun and now - self._told_at.get(name, -_PAUSE_SECONDS) >= _PAUSE_SECONDS:
                self._begun[name] = self._told_at[name] = now
                self._tell("begins", name, says, 0.0)
        for name in self._begun.keys() - found.keys():
            seconds = now - self._begun.pop(name)
            self._tell("is over", name, f"it is over after {seconds:.0f} s", seconds)

    def _tell(self, event: str, trouble: str, says: str, seconds: float) -> None:
        self._number += 1
        said = {"event": event, "trouble": trouble, "says": says, "seconds": round(seconds, 1)}
        self._waiting.append({**said, "number": self._number, "at": runtime.time(), **self._document})
        if self._sending is None or self._sending.done():
            self._sending = self._background.start(self._send_all(), "notices")

    async def _send_all(self) -> None:
        while self._waiting:
            said = self._waiting.popleft()
            for attempt in range(_MOST_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(_RETRY_SECONDS * 2 ** (attempt - 1))
                if not (why := await self._sent(said)):
                    break
                if attempt == 0:
                    logger.warning("A notice cannot be sent to %s, trying again: %s", URL, why)
            else:
                logger.error("A notice was not sent: %s", said["says"])

    async def _sent(self, said: Mapping[str, Any]) -> str:
        try:
            return await apart(partial(self._send, said))
        except Exception as error:  # noqa: BLE001 - of mail or TLS: no notice ends a crawl
            return repr(error)

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
