"""Stops that would hang: downloads that do, and processes that have reached their limit of threads."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.test_deadly_seeds import DEADLY, crawlers, deployment_done, seeds
from tools.deployment.deployment import Deployment, Run, wait_until
from tools.site.handle import Site

HOSTS = 4


def test_a_stop_ends_though_a_download_hangs_and_a_second_signal_ends_it_at_once(
    deployment: Deployment, site: Site
) -> None:
    """What was complete is committed, and what hung is repeated, by a process that may stop for an hour."""

    def requests(path: str) -> int:
        return sum(entry.path.startswith(path) for entry in site.entries())

    deployment.produce(seeds(site, ["/page/1", "/fault/hang/0/x", "/page/2"]))
    spider = ("-s", "late_spider", "--", *DEADLY)
    settings = {"PYTHONPATH": str(Path.cwd()), "SITE_STOP_GRACE_SECONDS": "6"}  # and 3 more: a machine may stand still
    run = deployment.start(*spider, **settings)
    wait_until(lambda: deployment_done(deployment) == 2 and requests("/fault/"), 300, "two results")
    run.terminate()
    assert run.wait(300) == 0
    assert "their seeds are repeated" in run.text()
    assert "'finish_reason': 'shutdown'" in run.text()
    assert "gathered: 2" in run.text()
    last = max(deployment.statistics(), key=lambda document: document["interval"])
    assert (last["moment"], last["total_num"], last["seeds"]["handed_back"]) == ("close", 2, 1)
    progress = deployment.log.progress(deployment.topic, deployment.group)
    assert sum(p.end - p.committed.offset for p in progress if p.committed) <= 2
    again = deployment.start(SITE_STOP_GRACE_SECONDS="3600")
    wait_until(lambda: requests("/fault/") == 2, 300, "the replay")
    (crawler,) = crawlers(again)
    again.terminate()
    wait_until(lambda: "Closing spider" in again.text(), 300, "the beginning of the stop")
    again.terminate()
    assert again.wait(300) != 0
    assert not Path(f"/proc/{crawler}").exists()
    assert requests("/page/") == 2


def start(deployment: Deployment, grace_seconds: int) -> Run:
    return deployment.start(
        *("-s", "threadless_spider", "--", *DEADLY),
        PYTHONPATH=str(Path.cwd()),
        SITE_STOP_GRACE_SECONDS=str(grace_seconds),
        SITE_CALLBACK_TIMEOUT_SECONDS="100",
    )


def is_asked(site: Site, path: str) -> bool:
    return any(entry.path == path for entry in site.entries())


def test_sigterm_stops_gracefully_where_no_thread_can_be_started(deployment: Deployment, site: Site) -> None:
    """What downloads ends, and all that is complete is committed."""
    deployment.produce(seeds(site, ["/page/threadless"]))
    run = start(deployment, 300)
    wait_until(lambda: deployment_done(deployment) == 1, 300, "the limit")
    deployment.produce(seeds(site, ["/page/1", "/slow/1500/1"]))
    wait_until(lambda: is_asked(site, "/slow/1500/1"), 300, "the download under way")
    run.terminate()
    assert run.wait(300) == 0, run.text()
    assert set(deployment.documents()) == {"/page/threadless", "/page/1", "/slow/1500/1"}
    assert deployment.lag() == 0
    assert "Traceback" not in run.text()
    assert "can't start new thread" not in run.text()


def test_a_blocked_event_loop_cannot_prolong_a_stop_where_no_thread_can_be_started(
    deployment: Deployment, site: Site
) -> None:
    deployment.produce(seeds(site, ["/page/threadless"]))
    run = start(deployment, 2)
    wait_until(lambda: deployment_done(deployment) == 1, 300, "the limit")
    deployment.produce(seeds(site, ["/page/endless"]))
    wait_until(lambda: f"reads {site.url('/page/endless')}" in run.text(), 300, "the page that blocks")
    (crawler,) = crawlers(run, "threadless_spider")
    run.terminate()
    assert run.wait(300) == 0
    assert not Path(f"/proc/{crawler}").exists()
    assert "longer than SITE_STOP_GRACE_SECONDS" in run.text()
