"""Processes that die: seeds that kill them, operators that kill them, stops that would hang."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest

from tools.deployment.deployment import Deployment, Run, opened, wait_until
from tools.site.handle import Site

pytestmark = pytest.mark.servers
DEADLY = ("-s", f"SPIDER_MODULES={__package__}.deadly_spiders")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    with Site(tmp_path / "record.jsonl", hosts=4) as site:
        yield site


@pytest.fixture(params=["kafka", "embedded"])
def deployment(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Deployment]:
    """Over Kafka, and over the embedded log; results in the local store."""
    brokers = request.getfixturevalue("kafka_brokers") if request.param == "kafka" else ""
    yield from opened(tmp_path, {"SITE_KAFKA_BROKERS": brokers})


def seeds(site: Site, paths: Sequence[str]) -> list[tuple[bytes | None, bytes | None]]:
    """One seed for each path; the path is its url_id."""
    return [
        (
            b"key",
            f'{{"url": "{site.url(path)}", "meta": {{"url_id": "{path}", "NotExtract": true}}}}'.encode(),
        )
        for path in paths
    ]


def crawlers(run: Run, spider: str = "crawl_spider") -> list[int]:
    """The process ids of the crawlers of a run."""
    found = subprocess.run(
        ["ps", "-ww", "--no-headers", "-o", "pid,args", "--ppid", str(run.process.pid)],
        capture_output=True,
        text=True,
        check=False,
    )
    return [int(line.split()[0]) for line in found.stdout.splitlines() if f" crawl {spider}" in line]


def test_a_seed_that_kills_its_process_becomes_a_dead_letter_and_no_other(
    deployment: Deployment, site: Site
) -> None:
    """Three deaths with others, two alone; the neighbours have their results, the crawl goes on."""
    good = [f"/page/{number}" for number in range(60)]
    deployment.produce(seeds(site, [*good[:30], "/page/deadly", *good[30:]]))
    run = deployment.start("-c", "4", "--until-done", "--", *DEADLY, PYTHONPATH=str(Path.cwd()))
    assert run.wait(300) == 0
    assert set(deployment.documents()) == set(good)
    (letter,) = deployment.dead_letters()
    assert letter.value is not None
    assert b"/page/deadly" in letter.value
    assert "died" in dict(letter.headers)["error"].decode()
    assert deployment.lag() == 0


def test_a_callback_in_an_endless_loop_is_ended_and_set_aside(tmp_path: Path, site: Site) -> None:
    """The watchdog ends the process; that counts as a death."""
    for deployment in opened(tmp_path, {}):
        loop_for_ever(deployment, site)


def loop_for_ever(deployment: Deployment, site: Site) -> None:
    deployment.produce(seeds(site, ["/page/1", "/page/endless", "/page/2"]))
    run = deployment.start(
        "--until-done", "--", *DEADLY, PYTHONPATH=str(Path.cwd()), SITE_CALLBACK_TIMEOUT_SECONDS="3"
    )
    assert run.wait(300) == 0
    assert set(deployment.documents()) == {"/page/1", "/page/2"}
    assert len(deployment.dead_letters()) == 1
    assert "SITE_CALLBACK_TIMEOUT_SECONDS" in run.text()


def test_three_kills_lose_nothing_and_partitions_come_back_at_once(
    deployment: Deployment, site: Site
) -> None:
    """kill -9 of the crawler in mid-crawl: it is started again and has its partitions within seconds."""
    paths = [f"/slow/100/{number}" for number in range(400)]
    deployment.produce(seeds(site, paths))
    run = deployment.start("--until-done")
    recoveries = []
    for share in (0.1, 0.3, 0.5):
        wait_until(lambda share=share: deployment_done(deployment) > share * 400, 60, f"{share} of the crawl")
        assigned = run.text().count("Assigned: ")
        (victim,) = crawlers(run)
        killed_at = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda before=assigned: run.text().count("Assigned: ") > before, 30, "a new assignment")
        recoveries.append(time.monotonic() - killed_at)
    assert run.wait(300) == 0
    assert set(deployment.documents()) == set(paths)
    assert deployment.dead_letters() == []
    assert deployment.lag() == 0
    assert sorted(recoveries)[1] < 8, recoveries


def deployment_done(deployment: Deployment) -> int:
    """How many results there are."""
    return len(deployment.documents())


def test_a_stop_ends_in_time_with_a_download_that_hangs(deployment: Deployment, site: Site) -> None:
    """After the grace the process leaves; what was complete is committed, the rest is repeated."""
    deployment.produce(seeds(site, ["/page/1", "/fault/hang/0/x", "/page/2"]))
    run = deployment.start(SITE_STOP_GRACE_SECONDS="4")
    wait_until(lambda: deployment_done(deployment) == 2, 60, "two results")
    began = time.monotonic()
    run.terminate()
    assert run.wait(30) == 0
    assert time.monotonic() - began < 10
    assert "their seeds are repeated" in run.text()
    progress = deployment.log.progress(deployment.topic, deployment.group)
    assert sum(p.end - p.committed.offset for p in progress if p.committed) <= 2
    again = deployment.start()
    wait_until(lambda: len([e for e in site.entries() if e.path == "/fault/hang/0/x"]) > 1, 40, "the replay")
    assert len([e for e in site.entries() if e.path.startswith("/page/")]) == 2
    again.end()


def test_a_second_signal_ends_the_process_at_once(deployment: Deployment, site: Site) -> None:
    """Whatever hangs, and however long the grace is."""
    deployment.produce(seeds(site, ["/fault/hang/0/x"]))
    run = deployment.start(SITE_STOP_GRACE_SECONDS="100")
    wait_until(
        lambda: [e for e in site.entries() if e.path == "/fault/hang/0/x"], 60, "the download under way"
    )
    (crawler,) = crawlers(run)
    run.terminate()
    wait_until(lambda: "Closing spider" in run.text(), 20, "the beginning of the stop")
    began = time.monotonic()
    run.terminate()
    assert run.wait(20) != 0
    assert time.monotonic() - began < 10
    assert not Path(f"/proc/{crawler}").exists()
