"""Pages extracted by a thread of this process; tests/sources/test_extractor.py has the process of its own."""

from __future__ import annotations

import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace

import pytest

from site_spider.sources import extractor


class ThreadOfPages:
    """Started and ended as the process is. No page is too slow for it: a signal would end the tests."""

    def __init__(self, connection: socket.socket) -> None:
        self._thread = threading.Thread(target=extractor.serve, args=(connection.dup(),), daemon=True)
        self._thread.start()

    def kill(self) -> None:
        """It ends with the connection."""

    def wait(self, timeout: float | None = None) -> int:
        self._thread.join(timeout)
        return 0


@contextmanager
def in_a_thread() -> Iterator[None]:
    signals = SimpleNamespace(SIGPROF=signal.SIGPROF, SIGKILL=signal.SIGKILL, ITIMER_PROF=signal.ITIMER_PROF)
    signals.setitimer = lambda _timer, _seconds: None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(extractor, "_started", ThreadOfPages)
        patch.setattr(extractor, "signal", signals)
        patch.setattr(extractor, "_WALL_SECONDS", 300.0)  # on a machine that stands still
        yield
