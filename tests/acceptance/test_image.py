"""The image: built by the Dockerfile, run read-only and without rights, as another user."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

import hatch_build
from tools.deployment.deployment import Deployment, wait_until
from tools.site.handle import Site

BUILD_SECONDS = 1700  # a fresh machine makes the base image first, and compiles, beside other tests
pytestmark = [pytest.mark.timeout(BUILD_SECONDS + 300), pytest.mark.xdist_group("image")]

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = ("podman", "buildah", "debootstrap", "runc")
RUN = (
    *("podman", "--runtime", "/usr/sbin/runc", "run", "--rm", "--network", "host"),
    *("--read-only", "--read-only-tmpfs=false"),  # a /run of podman loses the mode of what lies in it
    *("--cap-drop", "all", "--ulimit", "nofile=4096:4096", "--ulimit", "nproc=1024:1024"),
    *("--tmpfs", "/run/site_spider", "--no-healthcheck"),
)


@pytest.fixture(scope="session")
def image() -> str:
    if missing := [name for name in PROGRAMS if shutil.which(name) is None]:
        message = f"on Debian, as root: apt-get install {' '.join(missing)}"
        if os.environ.get("CI"):
            pytest.fail(message)
        pytest.skip(message)
    name = "site-spider-under-test"
    built = subprocess.run(
        [str(ROOT / "task_shell" / "image.sh"), name, "--build-arg", "COMPILE_LEVEL=0"],
        capture_output=True,
        text=True,
        check=False,
        timeout=BUILD_SECONDS,
    )
    assert built.returncode == 0, built.stdout[-1000:] + built.stderr[-3000:]
    return name


class Container:
    def __init__(self, log: Path, image: str, settings: dict[str, str], *command: str) -> None:
        self.name = f"site-spider-{uuid.uuid4().hex[:10]}"
        self.log = log
        options = [part for pair in settings.items() for part in ("--env", "=".join(pair))]
        with log.open("wb") as stream:
            self.process = subprocess.Popen(
                [*RUN, "--name", self.name, *options, image, *command],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
            )

    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def wait_assigned(self) -> None:
        wait_until(lambda: "Assigned: " in self.text() or self.process.poll() is not None, 300, "assignment")
        assert "Assigned: " in self.text(), self.text()[-3000:]

    def signal(self, number: signal.Signals) -> None:
        subprocess.run(["podman", "kill", "--signal", number.name, self.name], check=True, capture_output=True)

    def stop(self) -> int:
        """As an orchestrator does; its exit code."""
        self.signal(signal.SIGTERM)
        return self.process.wait(300)

    def end(self) -> None:
        if self.process.poll() is None:
            with suppress(subprocess.CalledProcessError):
                self.signal(signal.SIGKILL)
            self.process.wait(300)


@pytest.fixture
def containers() -> Iterator[list[Container]]:
    started: list[Container] = []
    yield started
    for container in started:
        container.end()


HOSTS = 4


def produce(deployment: Deployment, site: Site, count: int, first: int = 0) -> set[str]:
    """Seeds over all partitions; their url_ids."""
    paths = [f"/slow/100/{number}" for number in range(first, first + count)]
    deployment.produce_pages(site.url, paths)
    return set(paths)


def environment(deployment: Deployment, **more: str) -> dict[str, str]:
    settings = {name: value for name, value in deployment.settings.items() if name != "SITE_DATA_DIR"}
    return settings | {"SITE_METRICS_ADDRESS": ""} | more


def test_the_first_crawl_runs_inside(image: str) -> None:
    """quickstart.sh, with everything but its data read-only."""
    run = subprocess.run(
        [*RUN, "--env", "SITE_METRICS_ADDRESS=", "--entrypoint", "./task_shell/quickstart.sh", image],
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "What to try next" in run.stdout


def test_its_modules_are_compiled(image: str) -> None:
    said = subprocess.check_output([*RUN, image, "version", "-v"], text=True, timeout=600)
    assert f"site_spider is compiled ({len(hatch_build.modules())} modules)" in said


@pytest.mark.servers
def test_a_container_crawls_from_kafka_and_loses_nothing_in_a_stop(
    image: str, on_servers: Deployment, site: Site, containers: list[Container], tmp_path: Path
) -> None:
    seeds = produce(on_servers, site, 400)
    settings = environment(on_servers, CONCURRENT_REQUESTS="4")
    containers.append(Container(tmp_path / "first.log", image, settings))
    containers[0].wait_assigned()
    wait_until(on_servers.documents, 300, "a first document")
    assert containers[0].stop() == 0, containers[0].text()[-3000:]
    seeds |= produce(on_servers, site, 20, first=len(seeds))  # so that there is more to do, however long it took
    containers.append(Container(tmp_path / "second.log", image, settings))
    containers[1].wait_assigned()  # the first process of a container ignores what it does not handle
    wait_until(on_servers.is_done, 300, "no lag")
    assert containers[1].stop() == 0
    assert set(on_servers.documents()) == seeds


@pytest.mark.servers
@pytest.mark.nightly
def test_a_pod_that_is_replaced_keeps_its_place_in_the_group(
    image: str, on_servers: Deployment, site: Site, containers: list[Container], tmp_path: Path
) -> None:
    """Two pods are killed and come back in other containers, each under the other's folder and process."""

    patience = json.dumps({"session.timeout.ms": 45_000})  # containers start slowly on a busy machine

    def pod(name: str, number: int) -> Container:
        settings = environment(on_servers, SITE_MEMBER_NAME=name, SITE_KAFKA_OPTIONS=patience)
        container = Container(tmp_path / f"{name}-{number}.log", image, settings)
        containers.append(container)
        return container

    before = {name: pod(name, 0) for name in ("crawler-0", "crawler-1")}
    for container in before.values():
        container.wait_assigned()
    wait_until(lambda: sum(map(len, partitions(before).values())) == 4, 300, "all partitions")
    owned = partitions(before)
    for container in before.values():
        container.end()
    after = {name: pod(name, 1) for name in ("crawler-1", "crawler-0")}
    for container in after.values():
        container.wait_assigned()
    assert partitions(after) == owned
    seeds = produce(on_servers, site, 40)
    wait_until(on_servers.is_done, 300, "no lag")
    assert set(on_servers.documents()) == seeds


def partitions(pods: dict[str, Container]) -> dict[str, set[str]]:
    """What each owns now, by its log."""
    owned: dict[str, set[str]] = {name: set() for name in pods}
    for name, container in pods.items():
        for verb, names in re.findall(r"(Assigned|Revoked): (.+)", container.text()):
            found = {one.strip() for one in names.split(",")}
            owned[name] = owned[name] | found if verb == "Assigned" else owned[name] - found
    return owned
