"""Runs the project's `scrapy` as people do, with data of the test's own."""

from __future__ import annotations

import argparse
import contextlib
import io
import logging
import os
import subprocess
import sys
import tempfile
import threading
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest import mock

from scrapy.cmdline import execute
from scrapy.commands import ScrapyCommand
from scrapy.settings import Settings
from scrapy.utils.log import _uninstall_scrapy_root_handler, get_scrapy_root_handler

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.engine import scrapy_parts
from tests.project_settings import ours

ROOT = Path(__file__).resolve().parents[2]
SCRAPY = [sys.executable, "-m", "scrapy"]
_CRAWLS = {"crawl", "runspider", "fetch", "shell", "view", "parse", "bench", "check", "service", "console", "demo"}


def environment(data: Path, **variables: str) -> dict[str, str]:
    """Of the test run, but with settings of this project from the test alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
    return kept | {"SITE_DATA_DIR": str(data)} | variables


def run(command: ScrapyCommand, settings: Settings, *arguments: str) -> ScrapyCommand:
    """A command as Scrapy runs it, in this process."""
    command.settings = settings
    parser = argparse.ArgumentParser(conflict_handler="resolve")
    command.add_options(parser)
    opts, rest = parser.parse_known_args(arguments)
    command.process_options(rest, opts)
    command.run(rest, opts)
    return command


@contextlib.contextmanager
def _as_before() -> Iterator[None]:
    """What a command changes for all of its process is there again behind it."""
    hooks = sys.excepthook, threading.excepthook
    factory, root = logging.getLogRecordFactory(), logging.getLogger()
    level = root.level
    _uninstall()
    try:
        yield
    finally:
        _uninstall()
        sys.excepthook, threading.excepthook = hooks
        logging.setLogRecordFactory(factory)
        root.setLevel(level)


def _exit_code(arguments: list[str]) -> int:
    try:
        execute(arguments)
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:  # noqa: BLE001 - said as Python says it
        sys.excepthook(*sys.exc_info())
        return 1
    return 0


def _written(stream: io.TextIOWrapper) -> str:
    stream.flush()
    buffer = stream.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue().decode()


def _bytes(text: str | bytes) -> bytes:
    return text.encode() if isinstance(text, str) else text


def _uninstall() -> None:
    if get_scrapy_root_handler() is not None:
        _uninstall_scrapy_root_handler()


class Project:
    def __init__(self, data: Path) -> None:
        self.data = data
        self.log = LocalSeedLog(data)

    def scrapy(self, *arguments: str, stdin: str | bytes = b"", **variables: str) -> subprocess.CompletedProcess[str]:
        """What a command printed, and its exit code; in this process, unless it crawls."""
        start = self.process if arguments and arguments[0] in _CRAWLS else self.within
        return start(*arguments, stdin=stdin, **variables)

    def process(self, *arguments: str, stdin: str | bytes = b"", **variables: str) -> subprocess.CompletedProcess[str]:
        """As `scrapy`, always in a process of its own."""
        finished = subprocess.run(
            [*SCRAPY, *arguments],
            cwd=ROOT,
            env=environment(self.data, **variables),
            input=_bytes(stdin),
            capture_output=True,
            timeout=300,
            check=False,
        )
        output = (finished.stdout.decode(), finished.stderr.decode())
        return subprocess.CompletedProcess(finished.args, finished.returncode, *output)

    def started(self, *arguments: str, **more: Any) -> subprocess.Popen[Any]:
        """As `process`, while it runs; variables of the environment are in capitals, and the rest is for Popen."""
        variables = {name: more.pop(name) for name in list(more) if name.isupper()}
        return subprocess.Popen([*SCRAPY, *arguments], cwd=ROOT, env=environment(self.data, **variables), **more)

    def within(self, *arguments: str, stdin: str | bytes = b"", **variables: str) -> subprocess.CompletedProcess[str]:
        """As `scrapy`, always in this process."""
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with os.fdopen(os.memfd_create("stdin"), "w+b") as file:
            file.write(_bytes(stdin))
            file.seek(0)
            given = io.TextIOWrapper(file, encoding="utf-8")
            with (
                _as_before(),
                mock.patch.dict(os.environ, environment(self.data, **variables), clear=True),
                contextlib.chdir(ROOT),
                mock.patch.object(sys, "stdin", given),
                mock.patch.object(tempfile, "tempdir", None),  # TMPDIR counts
                mock.patch.object(scrapy_parts._Purpose, "takes_seeds", True),  # `scrapy list` takes it away
                contextlib.redirect_stdout(out),
                contextlib.redirect_stderr(err),
                warnings.catch_warnings(action="ignore"),
            ):
                code = _exit_code(["scrapy", *arguments])
        return subprocess.CompletedProcess(arguments, code, _written(out), _written(err))

    def direct(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same within this process: faster, but without what Scrapy does around a command."""
        command = import_module(f"site_spider.commands.{name}").Command()
        command.settings = ours()
        command.settings.set("SITE_DATA_DIR", str(self.data), priority="cmdline")
        parser = argparse.ArgumentParser()
        command.add_options(parser)
        opts, opts_args = parser.parse_known_args(arguments)
        opts.args = opts_args
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                command.work(opts)
            except SystemExit as end:
                command.exitcode = end.code
        return subprocess.CompletedProcess(arguments, command.exitcode, out.getvalue(), err.getvalue())

    def produce(
        self, topic: str, *messages: tuple[bytes | None, bytes | None], headers: tuple[tuple[str, bytes], ...] = ()
    ) -> None:
        producer = self.log.producer()
        futures = [producer.send(topic, key, value, headers) for key, value in messages]
        for future in futures:
            future.result(300)
        producer.close()
