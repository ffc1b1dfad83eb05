"""`scrapy demo`: the sample site and its seeds."""

from __future__ import annotations

import re
import subprocess
import urllib.error
import urllib.request

import pytest

from site_spider.commands.demo import BAD_MESSAGES, HOSTS, NOBODY, TROUBLE, page, seeds, serving
from site_spider.errors import ConfigError, SeedError
from site_spider.seed.seed import parse_seed, seed_message
from tests.commands.project import Project


def test_every_link_of_every_page_leads_to_a_page() -> None:
    """But for those that are there to fail. It is the same every time, for comparing runs."""
    to_do, seen = [(host, "/") for host in HOSTS], set()
    while to_do:
        host, path = to_do.pop()
        if (host, path) not in seen:
            seen.add((host, path))
            found = page(host, path)
            assert (found.status == 200) == (path not in {"/moved", "/missing", "/broken"}), path
            assert found == page(host, path)
            links = re.findall(r'href="([^"]+)"', found.body.decode("latin-1"))
            to_do += [(host, link) for link in [*links, *([found.location] if found.location else [])]]
    for path in ("/article/0", "/article/7", "/article/x", "/article/²", "/nothing"):
        assert page("127.0.0.2", path).status == 404
    assert len(seen) == sum(1 + 6 + len(paths) for paths in TROUBLE.values())


def test_seeds_are_good_and_bad_messages_bad() -> None:
    assert {seed_message(line)[0].decode() for line in seeds(8000)} == {*HOSTS, NOBODY}
    for message in BAD_MESSAGES:
        with pytest.raises(SeedError):
            parse_seed(message)


def test_the_site_is_served_on_every_host() -> None:
    """One port for all; HEAD has no body; redirects and failures are real."""
    with serving() as port:
        for host, (name, _) in HOSTS.items():
            with urllib.request.urlopen(f"http://{host}:{port}/") as answer:
                assert name in answer.read().decode()
        with urllib.request.urlopen(f"http://127.0.0.2:{port}/moved") as answer:
            assert answer.url == f"http://127.0.0.2:{port}/article/2"
        with urllib.request.urlopen(urllib.request.Request(answer.url, method="HEAD")) as answer:
            assert answer.read() == b""
        with pytest.raises(urllib.error.HTTPError, match="500") as caught:
            urllib.request.urlopen(f"http://127.0.0.4:{port}/broken")
        caught.value.close()


def test_a_port_that_is_taken_is_named() -> None:
    with (
        serving() as port,
        pytest.raises(ConfigError, match=rf"--port is {port}, but it cannot be served on 127\.0\.0\.2"),
        serving(port),
    ):
        pass


def test_the_command_produces_seeds_and_serves_until_stopped(project: Project) -> None:
    """SIGTERM is its normal end."""
    with project.started("demo", "--produce", stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as running:
        lines = [running.stdout.readline(), running.stdout.readline()]
        running.terminate()
        running.communicate(timeout=300)
    assert running.returncode == 0
    assert sorted(line[:8] for line in lines) == [b"produced", b"serving "]
    assert len(list(project.log.read("seeds"))) == len(seeds(1)) + len(BAD_MESSAGES)
