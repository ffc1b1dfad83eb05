"""Stops of a process that has reached its limit of threads."""

from __future__ import annotations

from pathlib import Path

from tests.acceptance.test_deaths import DEADLY, crawlers, deployment_done, seeds
from tools.deployment.deployment import Deployment, Run, wait_until
from tools.site.handle import Site

HOSTS = 4


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
    wait_until(lambda: is_asked(site, "/page/endless"), 300, "the page that blocks")
    (crawler,) = crawlers(run, "threadless_spider")
    run.terminate()
    assert run.wait(300) == 0
    assert not Path(f"/proc/{crawler}").exists()
    assert "longer than SITE_STOP_GRACE_SECONDS" in run.text()
