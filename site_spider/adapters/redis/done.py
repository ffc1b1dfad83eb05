"""Keeps the dupefilter's done marks and statistics documents in Redis, at SITE_REDIS_URL."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple, Self
from urllib.parse import urlsplit

from redis import Redis, RedisError, ResponseError
from redis.backoff import NoBackoff
from redis.exceptions import NoPermissionError
from redis.retry import Retry

from site_spider import options, runtime
from site_spider.adapters.files import ThreadSink
from site_spider.contracts.done_store import DoneStore, DoneUnavailable, bloom_limits
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkRejected, SinkUnavailable, SiteSpiderError
from site_spider.options import SettingsView
from site_spider.results.document import encode
from site_spider.text import cut, escaped

_SCHEMES = ("redis", "rediss", "unix")
_FILES = ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")
_CONNECT_SECONDS = 2.0
_ANSWER_SECONDS = 5.0
_LONGEST_REASON = 300  # characters


def client_of(url: str, address: str) -> Redis:
    """A client, not connected yet. Raises ConfigError."""
    try:
        client = Redis.from_url(
            url,
            socket_connect_timeout=_CONNECT_SECONDS,
            socket_timeout=_ANSWER_SECONDS,
            retry=Retry(NoBackoff(), 1),  # once, for connections that the server has closed meanwhile
            protocol=2,  # all that is needed here, and known to every server
        )
    except (ValueError, TypeError):
        raise ConfigError(
            f"SITE_REDIS_URL leads to {address!r}, but has options behind a question mark that the client "
            "does not take, or with values of a wrong type. Leave them out."
        ) from None
    for name in _FILES:
        if path := client.connection_pool.connection_kwargs.get(name):
            _check_file(address, name, path)
    return client


def _check_file(address: str, name: str, path: str) -> None:
    """The client names no file, and says that the server cannot be reached."""
    try:
        Path(path).open("rb").close()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(
            f"SITE_REDIS_URL leads to {address!r}, and its {name} {path} cannot be read: {reason}"
        ) from None


@contextmanager
def _explaining(client: Redis, address: str, away: type[SiteSpiderError]) -> Iterator[None]:
    """What goes wrong with the server is raised as `away`."""
    try:
        yield
    except (RedisError, OSError, ValueError, TypeError, RecursionError) as error:
        # the last three: what came is no answer of Redis, and what follows it is none either
        client.connection_pool.disconnect(inuse_connections=False)
        reason = str(error).rpartition(" caused error: ")[2]  # before it stands the command, in bytes
        said = cut(escaped(reason[: _LONGEST_REASON + 1]), _LONGEST_REASON)
        raise away(f"SITE_REDIS_URL is {address!r}, but its server cannot be used: {said}") from error


def address_of(url: str) -> str:
    """The URL without what may be secret: user, password, and options. Raises ConfigError."""
    try:
        parts = urlsplit(url)
        port, needs_host = parts.port, parts.scheme != "unix"  # asking for the port checks it
    except ValueError:
        raise _refused() from None
    if parts.scheme not in _SCHEMES or port == 0 or (needs_host and not parts.hostname):
        raise _refused()
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="", fragment="").geturl()


def _refused() -> ConfigError:
    return ConfigError(
        "SITE_REDIS_URL cannot be used (its value, which may hold a password, is not shown): "
        "set it to redis://host:port/0, redis://user:password@host:port/0 or rediss://... for TLS."
    )


def _place(settings: SettingsView, wanted_by: str) -> tuple[str, str]:
    """The URL, and how all keys of this group begin. Raises ConfigError."""
    url = options.text(settings, "SITE_REDIS_URL")
    if not url:
        raise ConfigError(f"SITE_REDIS_URL is empty, but {wanted_by} needs redis://host:port/0.")
    return url, f"site_spider:{options.text(settings, 'SITE_CONSUMER_GROUP', required=True)}:"


# --- done: marks of the dupefilter in Redis, shared by all processes of a consumer group -----------------
# Each is a key of its own, so that each has its own time to live and the server never has to drop a large
# value at once. Where the server has the commands BF.*, they may be kept in its Bloom filters instead
# (SITE_REDIS_DUPEFILTER_BLOOM). One server, or a pair with fail-over: not Redis Cluster, which refuses to
# answer for keys of several slots at once.

logger = logging.getLogger(__name__)

_MARK = b"1"  # a small number takes no memory of its own in the server
_BATCH = 1000  # fingerprints in one command or pipeline: keeps the server from being busy for long
_CACHE_SECONDS = 60.0  # so much longer than its time to live a fingerprint may count as done


class Exact(NamedTuple):
    """A key for each."""

    prefix: bytes
    ttl_seconds: int

    def known(self, client: Redis, fingerprints: Sequence[bytes]) -> list[bool]:
        values: Any = client.mget([self.prefix + fingerprint for fingerprint in fingerprints])
        return [value is not None for value in _checked(values, len(fingerprints), (None, _MARK))]

    def add(self, client: Redis, fingerprints: Sequence[bytes]) -> None:
        with client.pipeline(transaction=False) as pipeline:
            for fingerprint in fingerprints:
                pipeline.set(self.prefix + fingerprint, _MARK, ex=self.ttl_seconds or None)
            _checked(pipeline.execute(), len(fingerprints), (True,))


class Filters(NamedTuple):
    """Bloom filters of the server; with a time to live, a new one begins each time that has passed.

    Two are asked, so a fingerprint is kept for one to two times the time to live.
    """

    prefix: bytes
    ttl_seconds: int
    capacity: int
    error_rate: float
    now: Callable[[], float]

    def known(self, client: Redis, fingerprints: Sequence[bytes]) -> list[bool]:
        with client.pipeline(transaction=False) as pipeline:
            for key in self._keys():
                pipeline.execute_command("BF.MEXISTS", key, *fingerprints)  # type: ignore[no-untyped-call]
            answers = [_checked(one, len(fingerprints), (0, 1)) for one in pipeline.execute()]
        return [any(found) for found in zip(*answers, strict=True)]

    def add(self, client: Redis, fingerprints: Sequence[bytes]) -> None:
        """Keep them; the filter is made when it is missing, and grows when it is full."""
        key = next(self._keys())
        with client.pipeline(transaction=False) as pipeline:
            size = ("CAPACITY", self.capacity, "ERROR", self.error_rate)
            pipeline.execute_command("BF.INSERT", key, *size, "ITEMS", *fingerprints)  # type: ignore[no-untyped-call]
            if self.ttl_seconds:
                pipeline.expire(key, 2 * self.ttl_seconds)
            _checked(pipeline.execute()[0], len(fingerprints), (0, 1))

    def _keys(self) -> Iterator[bytes]:
        if not self.ttl_seconds:
            yield self.prefix + b"bloom"
            return
        period = int(self.now() / self.ttl_seconds)
        for number in (period, period - 1):
            yield self.prefix + b"bloom:%d" % number


class RedisDone(DoneStore):
    """Fulfils DoneStore."""

    name = "redis"

    def __init__(self, url: str, exact: Exact, filters: Filters | None = None) -> None:
        self.address = address_of(url)
        self.cache_seconds = min(_CACHE_SECONDS, exact.ttl_seconds / 10 or _CACHE_SECONDS)
        self._client = client_of(url, self.address)
        self._exact = exact
        self._filters = filters
        self._way: Exact | Filters | None = None  # settled when the server first answers

    @classmethod
    def from_settings(cls, settings: SettingsView) -> Self:
        url, start = _place(settings, "SITE_DUPEFILTER=redis")
        prefix = f"{start}seen:".encode()
        ttl_seconds = options.integer(settings, "SITE_REDIS_DUPEFILTER_TTL_SECONDS")
        filters = None
        if options.boolean(settings, "SITE_REDIS_DUPEFILTER_BLOOM"):
            filters = Filters(prefix, ttl_seconds, *bloom_limits(settings), runtime.time)
        return cls(url, Exact(prefix, ttl_seconds), filters)

    def open(self) -> None:
        with _explaining(self._client, self.address, DoneUnavailable):
            self._settled()

    async def check(self) -> str:
        """What `open` would find; the write that is asked for changes nothing. Raises DoneUnavailable."""

        def ask() -> None:
            with _explaining(self._client, self.address, DoneUnavailable):
                self._settled()
                self._client.set(self._exact.prefix + b"check", b"", ex=1, xx=True)

        await asyncio.to_thread(ask)
        return f"{self.address} answers"

    def known(self, fingerprints: Sequence[bytes]) -> set[bytes]:
        known: set[bytes] = set()
        with _explaining(self._client, self.address, DoneUnavailable):
            way = self._settled()
            for batch in _batches(fingerprints):
                answers = way.known(self._client, batch)
                known.update(one for one, is_kept in zip(batch, answers, strict=True) if is_kept)
        return known

    def add(self, fingerprints: Sequence[bytes]) -> None:
        with _explaining(self._client, self.address, DoneUnavailable):
            way = self._settled()
            for batch in _batches(fingerprints):
                way.add(self._client, batch)

    def close(self) -> None:
        self._client.close()

    def _settled(self) -> Exact | Filters:
        if self._way is None:
            self._client.ping()
            self._way = self._exact if self._filters is None else self._bloom_if_there(self._filters)
        return self._way

    def _bloom_if_there(self, filters: Filters) -> Exact | Filters:
        try:
            filters.known(self._client, [b"?"])
        except ResponseError as error:
            if not isinstance(error, NoPermissionError) and "unknown command" not in str(error):
                raise
            logger.warning(
                "SITE_REDIS_DUPEFILTER_BLOOM is true, but %s has no Bloom filters, so every fingerprint is "
                "kept exactly, as a key of its own: %s",
                self.address,
                error,
            )
            return self._exact
        return filters


def _checked(answer: object, count: int, allowed: Sequence[object]) -> list[Any]:
    """An answer with one of the allowed values for each fingerprint. Raises ResponseError."""
    if not isinstance(answer, list) or len(answer) != count or any(one not in allowed for one in answer):
        raise ResponseError(f"an answer that makes no sense: {answer!r:.100}")
    return answer


def _batches(fingerprints: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    for start in range(0, len(fingerprints), _BATCH):
        yield fingerprints[start : start + _BATCH]


# --- Statistics documents in Redis: each for a day, and a list of them by time ---------------------------

KEPT_SECONDS: Final = 86_400


class RedisStatistics(ThreadSink):
    """Fulfils StatisticsStore."""

    name = "redis"

    @classmethod
    def for_statistics(cls, settings: SettingsView) -> Self:
        url, start = _place(settings, "SITE_STATS_TO=redis")
        return cls(RedisDocuments(url, f"{start}statistics:"))


class RedisDocuments:
    """A document is the JSON text of the key PREFIX + its id. The sorted set PREFIX + `ids` has the ids by the
    Unix time at which they were written; PREFIX is `site_spider:GROUP:statistics:`.
    """

    def __init__(self, url: str, prefix: str) -> None:
        self._address = address_of(url)
        self._prefix = prefix
        self._client = client_of(url, self._address)

    def open(self) -> None:
        with _explaining(self._client, self._address, SinkUnavailable):
            self._client.ping()

    def check(self) -> str:
        """What `open` would find; the writes that are asked for change nothing."""
        with closing(self), _explaining(self._client, self._address, SinkUnavailable):
            self._client.ping()
            self._client.set(f"{self._prefix}check", "", ex=1, xx=True)
            self._client.zadd(f"{self._prefix}ids", {"check": 0}, xx=True)
        return f"{self._address} answers"

    def write(self, records: Sequence[Record]) -> list[Verdict]:
        with _explaining(self._client, self._address, SinkUnavailable):
            return self._write(records)

    def close(self) -> None:
        self._client.connection_pool.disconnect()

    def _write(self, records: Sequence[Record]) -> list[Verdict]:
        verdicts, now = [], runtime.time()
        ids = f"{self._prefix}ids"
        with self._client.pipeline(transaction=False) as pipeline:
            for record in records:
                try:
                    pipeline.set(self._prefix + record.key, encode(record.document), ex=KEPT_SECONDS)
                except SinkRejected as error:
                    verdicts.append(Verdict(Answer.REJECTED, str(error)))
                    continue
                pipeline.zadd(ids, {record.key: now})
                verdicts.append(ACKNOWLEDGED)
            pipeline.zremrangebyscore(ids, 0, now - KEPT_SECONDS)
            pipeline.expire(ids, KEPT_SECONDS)
            pipeline.execute()
        return verdicts
