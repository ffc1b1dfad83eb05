"""Runs the project's `scrapy` as people do, with data of the test's own."""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import subprocess
import sys
from importlib import import_module
from pathlib import Path

from scrapy.settings import Settings

from site_spider.adapters.local.log import LocalSeedLog

ROOT = Path(__file__).resolve().parents[2]
SCRAPY = [sys.executable, "-m", "scrapy"]


def environment(data: Path, **variables: str) -> dict[str, str]:
    """Of the test run, but with settings of this project from the test alone."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
    return kept | {"SITE_DATA_DIR": str(data)} | variables


class Project:
    """The project with one data folder."""

    def __init__(self, data: Path) -> None:
        self.data = data
        self.log = LocalSeedLog(data)

    def scrapy(
        self, *arguments: str, stdin: str | bytes = b"", **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """What a command printed, and its exit code."""
        finished = subprocess.run(
            [*SCRAPY, *arguments],
            cwd=ROOT,
            env=environment(self.data, **variables),
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        output = (finished.stdout.decode(), finished.stderr.decode())
        return subprocess.CompletedProcess(finished.args, finished.returncode, *output)

    def direct(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The same within this process: faster, but without what Scrapy does around a command."""
        command = import_module(f"site_spider.commands.{name}").Command()
        command.settings = Settings()
        command.settings.setmodule("site_spider.settings", priority="project")
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
        self,
        topic: str,
        *messages: tuple[bytes | None, bytes | None],
        headers: tuple[tuple[str, bytes], ...] = (),
    ) -> None:
        """Put messages into a topic."""
        producer = self.log.producer()
        futures = [producer.send(topic, key, value, headers) for key, value in messages]
        for future in futures:
            future.result(10)
        producer.close()
