"""Seeds that kill their process."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest

from tools.deployment.deployment import Deployment, Run, opened
from tools.deployment.processes import children
from tools.site.handle import Site

DEADLY = ("-s", f"SPIDER_MODULES={__package__}.deadly_spiders")

HOSTS = 4


def seeds(site: Site, paths: Sequence[str]) -> list[tuple[bytes | None, bytes | None]]:
    """One seed for each path; the path is its url_id."""
    return [
        (b"key", f'{{"url": "{site.url(path)}", "meta": {{"url_id": "{path}", "NotExtract": true}}}}'.encode())
        for path in paths
    ]


def crawlers(run: Run, spider: str = "crawl_spider") -> list[int]:
    found = []
    for process in children(run.process.pid):
        with suppress(OSError):  # it has just ended
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes()
            found += [process.pid] if f"\0crawl\0{spider}\0".encode() in words else []
    return found


def deployment_done(deployment: Deployment) -> int:
    return len(deployment.documents())


@pytest.mark.servers
def test_a_seed_that_kills_its_process_becomes_a_dead_letter_and_no_other(
    tmp_path: Path, kafka_brokers: str, site: Site
) -> None:
    """Three deaths with others, two alone; the neighbours have their results, the crawl goes on.

    The first time it is killed, then it loops for ever, which the watchdog ends.
    """
    good = [f"/page/{number}" for number in range(60)]
    for deployment in opened(tmp_path, {"SITE_KAFKA_BROKERS": kafka_brokers}):
        deployment.produce(seeds(site, [*good[:30], "/page/deadly", *good[30:]]))
        settings = {"PYTHONPATH": str(Path.cwd()), "SITE_CALLBACK_TIMEOUT_SECONDS": "1"}
        run = deployment.start("-c", "4", "--until-done", "--", *DEADLY, **settings)
        assert run.wait(300) == 0
        assert set(deployment.documents()) == set(good)
        (letter,) = deployment.dead_letters()
        assert letter.value is not None
        assert b"/page/deadly" in letter.value
        assert "died" in dict(letter.headers)["error"].decode()
        assert deployment.lag() == 0
        assert "was killed by signal KILL" in run.text()
        assert "SITE_CALLBACK_TIMEOUT_SECONDS" in run.text()
