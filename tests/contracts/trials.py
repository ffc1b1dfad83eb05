"""What tests of sinks with servers share: results to write, and servers that stand still."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from site_spider.contracts.sink import Answer, DocumentStore, Record, Verdict


def page(number: int) -> Record:
    """A result of about 10 KB that says which one it is."""
    document = {"url_id": str(number), "status": 200, "response_size": number, "body": f"{number} word " * 1200}
    return Record(str(number), document, 10_000)


def written(sink: DocumentStore, *batches: Sequence[Record]) -> list[Verdict]:
    """What a sink answers while it is open for these batches, one after the other."""

    async def scenario() -> list[Verdict]:
        await sink.open()
        try:
            return [verdict for batch in batches for verdict in await sink.write(batch)]
        finally:
            await sink.close()

    return asyncio.run(scenario())


def answers(verdicts: Sequence[Verdict]) -> list[Answer]:
    """Without the reasons."""
    return [verdict.answer for verdict in verdicts]


@contextmanager
def stopped(*processes: int) -> Iterator[None]:
    """They stand still: on a busy machine threads of a process still work for a while after the signal."""
    try:
        for process in processes:
            os.kill(process, signal.SIGSTOP)
        while not all(_stands_still(process) for process in processes):
            time.sleep(0.001)
        yield
    finally:
        for process in processes:
            os.kill(process, signal.SIGCONT)


def _stands_still(process: int) -> bool:
    return all(_state(thread) in "TZ" for thread in Path(f"/proc/{process}/task").iterdir())


def _state(thread: Path) -> str:
    """The state of a thread, or none when it has ended."""
    try:
        return (thread / "stat").read_text().rpartition(") ")[2][0]
    except (FileNotFoundError, ProcessLookupError):
        return ""


def pids(folder: Path, *roles: str) -> list[int]:
    """The processes of a server that servers.sh has started in its folder."""
    return [int((folder / f"{role}.pid").read_text().split()[0]) for role in roles]
