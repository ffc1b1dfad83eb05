"""That the race is fair: everybody has the same work, and what is not done does not count."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urldefrag, urljoin
from urllib.request import urlopen

import pytest
from lxml import html

from tools.race import contestants, heat, report
from tools.race.contestant import FileContestant, Heat, HeatFailed
from tools.race.heat import Figures, reckoned
from tools.race.machine import Cores, Meter, Reading
from tools.race.options import Mode, read_options
from tools.race.track import Track
from tools.race.workload import WORKLOADS, Workload

pytestmark = pytest.mark.xdist_group("race")  # they share a site
BY_NAME = {workload.name: workload for workload in WORKLOADS}


@pytest.fixture(scope="module")
def track(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Track]:
    with Track(tmp_path_factory.mktemp("track"), Cores.of_this_machine()) as track:
        yield track


def links_of(url: str) -> list[str]:
    """Every link of a page, joined by the standard library."""
    with urlopen(url) as answer:
        body = answer.read()
    return [urldefrag(urljoin(url, href)).url for href in html.fromstring(body).xpath("//a/@href")]


@pytest.mark.parametrize("name", [one.name for one in WORKLOADS if one.extracts])
def test_the_links_of_the_seeds_lead_to_every_other_page_and_to_no_seed(track: Track, name: str) -> None:
    workload = BY_NAME[name].scaled(60)
    track.reset(workload)
    seeds = list(workload.seed_urls(track.port(workload)))
    found = {link for seed in seeds for link in links_of(seed)}
    assert len(set(seeds)) == workload.seeds
    assert not found & set(seeds)
    assert len(seeds) + len(found) == workload.total


def test_a_page_is_there_on_its_own_host_only(track: Track) -> None:
    workload = BY_NAME["links"]
    track.reset(workload)
    url = f"http://{workload.host(0)}:{track.plain_port}{workload.seed_path(1)}"
    with pytest.raises(HTTPError, match="404") as raised:
        urlopen(url)
    raised.value.close()
    assert track.state().missing == 1


@pytest.mark.parametrize("name", [one.name for one in WORKLOADS if one.extracts])
def test_pages_have_the_size_and_the_links_that_the_workload_says(track: Track, name: str) -> None:
    workload = BY_NAME[name]
    track.reset(workload)
    first = next(workload.seed_urls(track.port(workload)))
    with urlopen(first) as answer:
        assert len(answer.read()) == pytest.approx(workload.page_bytes, rel=0.1)
    links = links_of(first)
    assert (len(links), len(set(links))) == (workload.anchors, min(workload.targets, workload.hubs))


def turn(track: Track, folder: Path, workload: Workload) -> Heat:
    return Heat(workload, folder, track)


def test_the_bare_loop_does_the_whole_work(track: Track, tmp_path: Path) -> None:
    """The limit counts only because it fetches, follows and writes like all others."""
    workload = BY_NAME["links"].scaled(1000)
    found = heat.run(contestants.Bare(turn(track, tmp_path, workload)), Cores.of_this_machine())
    assert found.cpu_us > 10
    assert found.peak_bytes > 10_000_000
    assert found.latencies is None


class Script(FileContestant):
    """Some lines of Python that know `seeds` and `output`."""

    name = "the script"
    text = ""

    def command(self) -> list[str]:
        seeds = self.heat.folder / "seeds.txt"
        head = f"seeds = open({str(seeds)!r}).read().split(); output = open({str(self.output)!r}, 'w')\n"
        return [sys.executable, "-c", f"import json, urllib.request\n{head}{self.text}"]


FETCH = "for url in seeds: body = urllib.request.urlopen(url).read().decode(); "
WRITE = "print(json.dumps({'url': url, 'status': 200, 'headers': '', 'body': body}), file=output)\n"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (FETCH + "\n", "0 of 30 records"),
        (FETCH + "urllib.request.urlopen(url); " + WRITE, "did not ask for each of 30 pages once"),
        (FETCH + "body = ''; " + WRITE, "a wrong record"),
        (FETCH + "url = seeds[0]; " + WRITE, "one twice"),
        ("for url in seeds: body = 'x' * 1000; " + WRITE, "did not ask"),
    ],
)
def test_who_does_less_is_not_measured(track: Track, tmp_path: Path, text: str, reason: str) -> None:
    workload = BY_NAME["small"].scaled(30)
    script = Script(turn(track, tmp_path, workload))
    script.text = text
    with pytest.raises(HeatFailed, match=reason):
        heat.run(script, Cores.of_this_machine())


def test_the_meter_counts_the_cpu_of_children_and_what_it_counted_of_ended_ones() -> None:
    burn = "import time\nwhile time.process_time() < 1.2: pass"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        meter = Meter(process.pid, lambda _process: True, Cores.of_this_machine().crawler)
        readings = [meter.read(0, process.pid, [])]
        while readings[-1].cpu_seconds < 0.3:
            readings.append(meter.read(0, process.pid, []))
            assert process.poll() is None
        process.communicate(b"\n")
    gone = meter.read(0, os.getpid(), [])
    assert gone.cpu_seconds >= 0.3
    assert gone.resident_bytes == 0
    assert readings[-1].peak_bytes > 5_000_000


def test_the_start_is_not_counted_and_the_end_is() -> None:
    readings = [reading(0, 0, 5), reading(10, 50, 6), reading(11, 1000, 7), reading(12, 1000, 7.9)]
    found = reckoned(readings, 1000, last_served=11, connections=3, latencies=None)
    assert found.cpu_us == pytest.approx(1.9 / 950 * 1e6)
    assert found.pages_per_second == pytest.approx(950)
    assert found.disturbance == pytest.approx(0.01)
    assert found.site_cpu_us == pytest.approx(0.19 / 950 * 1e6)
    readings.append(reading(13, 1000, 7.9, resident=0))  # the crawler has ended itself
    assert reckoned(readings, 1000, last_served=11, connections=3, latencies=None).late_bytes == 10
    with pytest.raises(ValueError, match="--pages"):
        reckoned([reading(0, 0, 1), reading(1, 1000, 2)], 1000, 1, 1, None)


def reading(at: float, served: int, cpu: float, resident: int = 10) -> Reading:
    return Reading(at, served, cpu, resident, 20, cpu / 10, cpu / 2, cpu + at / 100)


def test_a_heat_is_looked_at_often_until_it_is_warm() -> None:
    """Few pages of a fast crawler are over in the time between two usual looks."""
    workload = BY_NAME["small"].scaled(400)
    assert heat.look_seconds(0, workload) == heat.look_seconds(19, workload) == heat.EAGER_SECONDS
    assert heat.look_seconds(20, workload) == heat.look_seconds(400, workload) == heat.LOOK_SECONDS


def test_a_wrong_peer_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        read_options(["--folder", "unused", "--peers", "ours,nobody"])
    assert ended.value.code == 2
    assert "'nobody' is none of ours, stock" in capsys.readouterr().err


def test_a_flat_race_can_be_one_of_another_workload(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--folder", "unused", "--flat", "--workload", "small", "tls", "--flat-pages", "20,40"]
    found = read_options([*arguments, "--flat-hosts", "10"]).workloads
    assert [(each.name, each.total, each.hosts) for each in found] == [
        ("small", 20, 10), ("small", 40, 10), ("tls", 20, 10), ("tls", 40, 10)
    ]  # fmt: skip
    with pytest.raises(SystemExit):
        read_options([*arguments, "--flat-hosts", "10000"])
    assert "--workload tls has 250 hosts at most" in capsys.readouterr().err


def test_with_one_core_the_race_is_run_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: {3})
    cores = Cores.of_this_machine()
    assert (cores.crawler, cores.servers, cores.are_apart) == ((3,), (3,), False)
    assert "ONE CORE" in cores.note


def figures(cpu_us: float) -> Figures:
    return Figures(
        cpu_us=cpu_us,
        early_cpu_us=1,
        late_cpu_us=2,
        pages_per_second=100,
        early_bytes=1_000_000,
        late_bytes=2_000_000,
        peak_bytes=3_000_000,
        site_cpu_us=20,
        servers_cpu_us=30,
        disturbance=0.5,
        connections=4,
        latencies=None,
    )


def test_the_table_has_medians_with_their_spread_and_how_many_times_stock_they_are() -> None:
    workload = BY_NAME["links"]
    results = {
        (workload.key, "stock"): [figures(4000), figures(3000), figures(8000)],
        (workload.key, "ours"): [figures(1000), figures(500), figures(800)],
    }
    head, ours, stock = report.lines(Mode.RACE, [workload], results)
    assert "x stock" in head
    assert ours.split()[:5] == ["links", "site_spider", "800", "500-1,000", "5.00"]
    assert stock.split()[:5] == ["links", "Scrapy", "4,000", "3,000-8,000", "1.00"]
    assert "50,000 a second" in next(report.capacities([workload], results))
    assert "for site_spider the servers took 30 µs" in next(report.servers([workload], results))
    assert "50% of the time" in next(report.disturbances(results))


def test_a_table_of_growth_has_the_first_and_the_last_pages() -> None:
    workload = BY_NAME["small"].scaled(2000)
    results = {(workload.key, "ours"): [figures(800)]}
    _, row = report.lines(Mode.FLAT, [workload], results)
    assert row.split() == ["2,000", "8", "site_spider", "800", "1", "2", "100", "4", "1", "2", "3"]


def test_no_page_is_asked_for_that_is_not_there(track: Track) -> None:
    track.reset(BY_NAME["small"].scaled(30))
    assert track.state().asked == 0
    assert json.dumps(track.times()) == "{}"
