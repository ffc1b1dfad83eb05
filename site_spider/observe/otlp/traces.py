"""Traces one seed of every SITE_TRACE_EVERY, as a listener on its life-cycle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from site_spider.contracts.seed_log import Message, Partition, Position
from site_spider.errors import SeedError
from site_spider.ledger.entry import Entry
from site_spider.ledger.lifecycle import SeedListener
from site_spider.ledger.lineage import Job, Root
from site_spider.ledger.metadata import decode
from site_spider.observe.otlp.extra import check_installed
from site_spider.observe.otlp.seed_trace import SeedTrace
from site_spider.seed.seed import Seed

NAME: Final = "SITE_TRACE_EVERY"
_MOST_UNCOMMITTED: Final = 1_000  # complete seeds that wait for their commit; beyond it the oldest is dropped


class SeedTraces(SeedListener):
    """On the event loop's thread. Spans are made when a seed is committed; a thread of the SDK sends them."""

    def __init__(self, every: int, attributes: Mapping[str, str]) -> None:
        """Raises ConfigError without the extra `otel`."""
        check_installed(f"{NAME} is {every}")
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415 - an extra
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

        self._every = every
        self._arrived = 0
        self._open: dict[Entry, SeedTrace] = {}
        self._complete: dict[Entry, SeedTrace] = {}
        self._provider = TracerProvider(resource=Resource.create(dict(attributes)), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer: Any = self._provider.get_tracer("site_spider")

    async def close(self) -> None:
        """Send what waits; a receiver that is away is waited for up to OTEL_EXPORTER_OTLP_TIMEOUT."""
        await asyncio.to_thread(self._provider.shutdown)

    # --- SeedListener -----------------------------------------------------------------------------

    def arrived(self, entry: Entry, message: Message, seed: Seed | SeedError) -> None:  # noqa: ARG002
        """As in SeedListener."""
        self._arrived += 1
        if self._arrived % self._every == 0:
            self._open[entry] = SeedTrace(message.timestamp_ms * 1_000_000, time.time_ns())

    def began(self, root: Root) -> None:
        """As in SeedListener."""
        if (trace := self._open.get(root.seed_entry)) is not None:
            trace.begin(time.time_ns())

    def downloaded(self, seconds: float, entry: object) -> None:
        """A request was out for so long."""
        trace = self._open.get(entry) if isinstance(entry, Entry) else None
        if trace is not None:
            trace.downloaded(time.time_ns(), int(seconds * 1e9))

    def unwritten(self, job: Job) -> None:
        """As in SeedListener."""
        if (trace := self._open.get(job.entry)) is not None:
            trace.parsed(time.time_ns())

    def ended(self, entry: Entry) -> None:
        """As in SeedListener."""
        trace = self._open.pop(entry, None)
        if trace is None:
            return
        trace.complete(time.time_ns(), "" if entry.outcome is None else entry.outcome.value)
        if len(self._complete) >= _MOST_UNCOMMITTED:
            del self._complete[next(iter(self._complete))]
        self._complete[entry] = trace

    def fenced(self, entry: Entry) -> None:
        """As in SeedListener."""
        self._open.pop(entry, None)

    def committed(self, positions: Mapping[Partition, Position | None]) -> None:
        """As in SeedListener."""
        for entry in [each for each in self._complete if _is_told(each, positions.get(each.partition))]:
            self._send(entry, self._complete.pop(entry))

    def _send(self, entry: Entry, trace: SeedTrace) -> None:
        from opentelemetry.trace import set_span_in_context  # noqa: PLC0415 - an extra

        whole, *steps = trace.spans(time.time_ns())
        attributes = {"seed": entry.position, "outcome": trace.outcome}
        root = self._tracer.start_span(whole.name, start_time=whole.began, attributes=attributes)
        context = set_span_in_context(root)
        for step in steps:
            span = self._tracer.start_span(step.name, context, start_time=step.began)
            span.end(step.ended)
        root.end(whole.ended)


def _is_told(entry: Entry, position: Position | None) -> bool:
    """Whether a committed position says that this seed is complete."""
    if position is None:
        return False
    if entry.offset < position.offset:
        return True
    runs = decode(position.offset, position.metadata).complete
    return any(first <= entry.offset < last for first, last in runs)
