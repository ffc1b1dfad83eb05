"""Crawls hostile pages beside good ones with a real `scrapy crawl`, and says what it cost."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from site_spider.errors import TopicMissing
from site_spider.service import config as parts
from tests.hostile.raw_site import raw_site
from tests.in_process.engine import lag, produce, settings_for

ROOT = Path(__file__).resolve().parents[2]
MOST_TURN_SECONDS = 0.5  # of CPU, between two turns of the event loop: several times what an attack takes
MOST_MB = 500  # a process that has just started has 90, and SITE_BODIES_MAX_BYTES is 256
GOOD_PAGES = 30  # fetched beside the hostile ones


@dataclass
class Report:
    """What a crawl left behind."""

    exit_code: int
    longest_turn_seconds: float
    peak_mb: float
    documents: dict[str, dict[str, Any]]  # by URL
    dead_letters: int
    log: str
    good: list[str]  # URLs of the good pages
    seconds: float
    is_done: bool  # every seed is complete and committed

    def descriptions(self) -> dict[str, str | None]:
        """Why each of the others failed."""
        return {url: doc["description"] for url, doc in self.documents.items() if url not in self.good}

    def check(self) -> None:
        """The bounds that hold for every attack."""
        figures = f"{self.longest_turn_seconds:.3f} s of CPU in a turn, {self.peak_mb:.0f} MB\n{self.log[-3000:]}"
        assert self.is_done, figures
        assert self.exit_code == 0, figures
        assert self.longest_turn_seconds <= MOST_TURN_SECONDS, figures
        assert self.peak_mb <= MOST_MB, figures
        failed = [url for url in self.good if self.documents.get(url, {}).get("status") != 200]
        assert not failed, f"good pages without a good result: {failed}\n{figures}"
        assert "Traceback" not in self.log, self.log[-6000:]


def crawl(
    folder: Path,
    seeds: Sequence[str | Mapping[str, Any]],
    timeout_seconds: float = 300,
    good_pages: int = GOOD_PAGES,
    **settings: Any,
) -> Report:
    """Crawl seeds (URLs, or whole messages) and good pages until all are complete; then a graceful stop."""
    with raw_site(host="127.0.0.9") as good_site:
        good = [good_site.url(f"/good/{number}") for number in range(good_pages)]
        return _crawl(folder, [*seeds, *good], good, timeout_seconds, settings)


def _crawl(
    folder: Path,
    seeds: Sequence[str | Mapping[str, Any]],
    good: list[str],
    timeout_seconds: float,
    changed: Mapping[str, Any],
) -> Report:
    names = {
        "SITE_DATA_DIR": str(folder / "data"),
        "SITE_ALLOW_PRIVATE_HOSTS": "true",
        "RETRY_TIMES": "0",
        "DOWNLOAD_TIMEOUT": "300",  # a busy machine reads a page of megabytes for a minute
        "SITE_STATS_INTERVAL_SECONDS": "1",
        **{name: str(value) for name, value in changed.items()},
    }
    scrapy_settings = settings_for(folder / "data", **changed)
    log = parts.seed_log(scrapy_settings)
    produce(log, "seeds", [_message(seed, is_good=seed in good) for seed in seeds])
    began = time.monotonic()
    exit_code, is_done = _run(folder, names, log, began + timeout_seconds)
    seconds = time.monotonic() - began
    figures = json.loads((folder / "figures.json").read_text())
    assert figures["loop"].startswith("uvloop"), figures
    reader = parts.reader(scrapy_settings)
    documents = {document["url"]: document for document in reader.search(limit=None)}
    reader.close()
    try:
        dead_letters = len(list(log.read("seeds.dead-letters")))
    except TopicMissing:
        dead_letters = 0
    log.close()
    return Report(
        exit_code,
        figures["longest_turn_seconds"],
        figures["peak_mb"],
        documents,
        dead_letters,
        (folder / "crawl.log").read_text(errors="replace"),
        good,
        seconds,
        is_done,
    )


def _message(seed: str | Mapping[str, Any], *, is_good: bool) -> Mapping[str, Any]:
    if not isinstance(seed, str):
        return seed
    return {"url": seed, "meta": {"NotExtract": True} | ({"download_timeout": 300} if is_good else {})}


def _run(folder: Path, names: Mapping[str, str], log: Any, deadline: float) -> tuple[int, bool]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
    environment = kept | {"HOSTILE_FIGURES": str(folder / "figures.json")} | names
    command = [sys.executable, "-m", "tests.hostile.measured", "crawl", "crawl_spider"]
    more: Any = {"cwd": ROOT, "env": environment, "stdin": subprocess.DEVNULL}
    with (
        (folder / "crawl.log").open("wb") as stream,
        subprocess.Popen(command, **more, stdout=stream, stderr=stream) as process,
    ):
        while process.poll() is None and time.monotonic() < deadline and lag(log):
            time.sleep(0.1)
        is_done = not lag(log)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return process.wait(300), is_done
