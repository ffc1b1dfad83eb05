"""What the programs behind `chaos.sh` and `bench.sh` share: options, lines of progress, interruption."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType

EXIT_INTERRUPTED = 130
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_began = time.monotonic()


def within(kind: type, least: float, most: float) -> Callable[[str], float]:
    """The type of an option that is a number."""

    def number(text: str) -> float:
        value: float = kind(text)
        if not least <= value <= most:
            raise argparse.ArgumentTypeError(f"{text} is not from {least:g} to {most:g}")
        return value

    return number


def parser(name: str, description: str) -> argparse.ArgumentParser:
    kind = argparse.RawDescriptionHelpFormatter
    return argparse.ArgumentParser(prog=name, description=description, formatter_class=kind, allow_abbrev=False)


def say(text: str) -> None:
    """A line of progress."""
    print(f"[{time.monotonic() - _began:6.1f} s] {text}", file=sys.stderr, flush=True)


def interrupt_by_signals() -> None:
    """As Ctrl-C does, once: the cleaning up is not to be interrupted."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        for number in _SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        raise KeyboardInterrupt

    for number in _SIGNALS:
        signal.signal(number, interrupt)
