"""Statistics documents in Redis: each for a day, and a list of them by time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final, Self, TypeVar

from redis import Redis, RedisError

from site_spider import options, runtime
from site_spider.adapters.redis.client import address_of, client_of
from site_spider.contracts.sink import ACKNOWLEDGED, Answer, Record, Verdict
from site_spider.errors import ConfigError, SinkRejected, SinkUnavailable
from site_spider.options import SettingsView
from site_spider.results.document import encode
from site_spider.text import cut, escaped

T = TypeVar("T")

KEPT_SECONDS: Final = 86_400
_LONGEST_REASON: Final = 300  # characters


class RedisStatistics:
    """Fulfils StatisticsStore.

    A document is the JSON text of the key PREFIX + its id. The sorted set PREFIX + `ids` has the ids by the
    Unix time at which they were written; PREFIX is `site_spider:GROUP:statistics:`.
    """

    name = "redis"

    def __init__(self, url: str, prefix: str) -> None:
        self._address = address_of(url)
        self._url = url
        self._prefix = prefix
        self._client: Redis | None = client_of(url, self._address)  # shows whether the URL can be used
        self._thread: runtime.ThreadPoolExecutor | None = None

    @classmethod
    def for_statistics(cls, settings: SettingsView) -> Self:
        """At SITE_REDIS_URL, under the name of the consumer group. Raises ConfigError."""
        url = options.text(settings, "SITE_REDIS_URL")
        if not url:
            raise ConfigError("SITE_REDIS_URL is empty, but SITE_STATS_TO=redis needs redis://host:port/0.")
        group = options.text(settings, "SITE_CONSUMER_GROUP", required=True)
        return cls(url, f"site_spider:{group}:statistics:")

    async def open(self) -> None:
        """See whether the server answers. Raises SinkUnavailable."""
        self._client = self._client or client_of(self._url, self._address)
        await self._run(self._client.ping)

    async def check(self) -> str:
        """What `open` would find; the writes that are asked for change nothing. Raises SinkUnavailable."""
        client = self._client = self._client or client_of(self._url, self._address)
        try:
            await self._run(client.ping)
            await self._run(lambda: client.set(f"{self._prefix}check", "", ex=1, xx=True))
            await self._run(lambda: client.zadd(f"{self._prefix}ids", {"check": 0}, xx=True))
        finally:
            await self.close()
        return f"{self._address} answers"

    async def write(self, records: Sequence[Record]) -> Sequence[Verdict]:
        """Write the records in one round trip. Raises SinkUnavailable."""
        return await self._run(lambda: self._write(records))

    async def close(self) -> None:
        """Close the connections. Never raises."""
        thread, self._thread = self._thread, None
        client, self._client = self._client, None
        if client is not None:
            client.connection_pool.disconnect()
        if thread is not None:
            thread.shutdown(wait=False, cancel_futures=True)

    def _write(self, records: Sequence[Record]) -> list[Verdict]:
        if self._client is None:
            raise SinkUnavailable("The store of statistics in Redis is not open.")
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

    async def _run(self, action: Callable[[], T]) -> T:
        if self._thread is None:
            self._thread = runtime.ThreadPoolExecutor(max_workers=1, thread_name_prefix="redis-statistics")
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._guarded, action)

    def _guarded(self, action: Callable[[], T]) -> T:
        try:
            return action()
        except (RedisError, OSError, ValueError, TypeError, RecursionError) as error:
            said: Any = cut(escaped(str(error)[: _LONGEST_REASON + 1]), _LONGEST_REASON)
            raise SinkUnavailable(
                f"SITE_REDIS_URL is {self._address!r}, but its server cannot be used: {said}"
            ) from error
