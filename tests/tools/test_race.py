"""That the race is fair: everybody has the same work, and what is not done does not count."""

from __future__ import annotations

import os
import re
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
from tools.race.contestants import CONTESTANTS, Compiled, FileContestant, Heat, HeatFailed, Toolchain, ToolchainMissing
from tools.race.heat import Cores, Figures, Meter, Reading, reckoned
from tools.race.site import Track
from tools.race.workload import WORKLOADS, Workload

pytestmark = pytest.mark.xdist_group("race")  # they share a site
BY_NAME = {workload.name: workload for workload in WORKLOADS}
ROOT = Path(__file__).resolve().parents[2]
KINDS = {name: kind for name, kind in CONTESTANTS.items() if issubclass(kind, Compiled)}


@pytest.fixture(scope="module")
def track(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Track]:
    with Track(tmp_path_factory.mktemp("track")) as track:
        yield track


def links_of(url: str) -> list[str]:
    """Every link of a page, joined by the standard library."""
    with urlopen(url) as answer:
        body = answer.read()
    return [urldefrag(urljoin(url, href)).url for href in html.fromstring(body).xpath("//a/@href")]


@pytest.mark.parametrize("name", [one.name for one in WORKLOADS if one.extracts])
def test_links_of_seeds_lead_to_every_other_page_and_pages_have_the_size_that_the_workload_says(
    track: Track, name: str
) -> None:
    workload = BY_NAME[name].scaled(60)
    track.reset(workload)
    seeds = list(workload.seed_urls(track.port(workload)))
    found = {link for seed in seeds for link in links_of(seed)}
    assert len(set(seeds)) == workload.seeds
    assert not found & set(seeds)
    assert len(seeds) + len(found) == workload.total
    workload = BY_NAME[name]
    track.reset(workload)
    first = next(workload.seed_urls(track.port(workload)))
    with urlopen(first) as answer:
        assert len(answer.read()) == pytest.approx(workload.page_bytes, rel=0.1)
    links = links_of(first)
    assert (len(links), len(set(links))) == (workload.anchors, min(workload.targets, workload.hubs))


def test_a_page_is_there_on_its_own_host_only(track: Track) -> None:
    workload = BY_NAME["links"]
    track.reset(workload)
    url = f"http://{workload.host(0)}:{track.plain_port}{workload.seed_path(1)}"
    with pytest.raises(HTTPError, match="404") as raised:
        urlopen(url)
    raised.value.close()
    assert track.state().missing == 1


def turn(track: Track, folder: Path, workload: Workload) -> Heat:
    return Heat(workload, folder, track)


@pytest.mark.nightly
def test_scrapy_does_the_whole_work(track: Track, tmp_path: Path) -> None:
    workload = BY_NAME["links"].scaled(400)
    cores = os.sched_getaffinity(0)
    found = heat.run(contestants.Stock(turn(track, tmp_path, workload)), Cores.of_this_machine())
    assert found.cpu_us > 10
    assert found.peak_bytes > 10_000_000
    assert os.sched_getaffinity(0) == cores


class Script(FileContestant):
    """Some lines of Python that know `seeds` and `output`."""

    name = "the script"
    text = ""

    def command(self) -> list[str]:
        head = f"seeds = open({str(self.seed_file)!r}).read().split(); "
        head += f"output = open({str(self.output)!r}, 'w')\n"
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


def test_the_meter_counts_the_cpu_of_children_and_what_it_counted_of_ended_ones(tmp_path: Path) -> None:
    counted = tmp_path / "counted"
    burn = f"import os, time\nwhile time.process_time() < 60 and not os.path.exists({str(counted)!r}): pass"
    program = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {burn!r}])\ninput()"
    with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE) as process:
        meter = Meter(process.pid, lambda _process: True, Cores.of_this_machine())
        readings = [meter.read(0, process.pid, [])]
        while readings[-1].cpu_seconds < 0.3:
            readings.append(meter.read(0, process.pid, []))
            assert process.poll() is None
        counted.touch()
        process.communicate(b"\n")
    gone = meter.read(0, os.getpid(), [])
    assert gone.cpu_seconds >= 0.3
    assert gone.resident_bytes == 0
    assert readings[-1].peak_bytes > 5_000_000


def test_the_start_is_not_counted_and_the_end_is() -> None:
    readings = [reading(0, 0, 5), reading(10, 50, 6), reading(11, 1000, 7), reading(12, 1000, 7.9)]
    found = reckoned(readings, 1000, last_served=11, connections=3)
    assert found.cpu_us == pytest.approx(1.9 / 950 * 1e6)
    assert found.pages_per_second == pytest.approx(950)
    assert found.disturbance == pytest.approx(0.01)
    assert found.site_cpu_us == pytest.approx(0.19 / 950 * 1e6)
    readings.append(reading(13, 1000, 7.9, resident=0))  # the crawler has ended itself
    assert reckoned(readings, 1000, last_served=11, connections=3).late_bytes == 10
    with pytest.raises(HeatFailed, match="--pages"):
        reckoned([reading(0, 0, 1), reading(1, 1000, 2)], 1000, 1, 1)


def reading(at: float, served: int, cpu: float, resident: int = 10) -> Reading:
    return Reading(at, served, cpu, resident, 20, cpu / 10, cpu / 2, cpu + at / 100)


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
    )


def test_the_table_has_medians_with_their_spread_and_how_many_times_stock_they_are() -> None:
    workload = BY_NAME["links"]
    results = {
        (workload.key, "stock"): [figures(4000), figures(3000), figures(8000)],
        (workload.key, "ours"): [figures(1000), figures(500), figures(800)],
    }
    head, ours, stock = report.lines([workload], results)
    assert "x stock" in head
    assert ours.split()[:5] == ["links", "site_spider", "800", "500-1,000", "5.00"]
    assert stock.split()[:5] == ["links", "Scrapy", "4,000", "3,000-8,000", "1.00"]
    capacity, servers, disturbance = report.notes([workload], results)
    assert "50,000 a second" in capacity
    assert "for site_spider the servers took 30 µs" in servers
    assert "50% of the time" in disturbance


# --- programs in Go and Rust ----------------------------------------------------------------------


@pytest.fixture
def copier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[Compiled]:
    """One source, and a compiler that copies it, in a folder of PATH."""
    for file, text in (("bin/copier", '#!/bin/sh\ncp "$1/main" "$2/program"\n'), ("it/main", "the program")):
        (tmp_path / file).parent.mkdir()
        (tmp_path / file).write_text(text)
    (tmp_path / "bin" / "copier").chmod(0o755)
    (tmp_path / "builds" / "it").mkdir(parents=True)
    monkeypatch.setattr(contestants, "BUILDS", tmp_path / "builds")
    monkeypatch.setattr(contestants, "PATH", f"{contestants.PATH}{os.pathsep}{tmp_path / 'bin'}")

    class Copied(Compiled):
        name = "copied"
        toolchain = Toolchain("Copying", "copier {sources} {folder}", "install the copier")
        sources = tmp_path / "it"

    return Copied


def test_a_program_is_built_of_its_sources(copier: type[Compiled]) -> None:
    copier.toolchain.check("it")
    copier.build()
    assert (copier.folder() / "program").read_text() == "the program"
    (copier.sources / "main").unlink()
    with pytest.raises(subprocess.CalledProcessError):
        copier.build()


def test_without_a_compiler_the_message_says_what_to_install() -> None:
    with pytest.raises(ToolchainMissing) as raised:
        Toolchain("Copying", "no-such-copier", "install the copier").check("--peers it")
    assert str(raised.value) == (
        "--peers it needs Copying, but no-such-copier is neither in PATH nor in /usr/local/go/bin or "
        "~/.cargo/bin: install the copier"
    )


def test_without_a_toolchain_bench_ends_with_69_before_anything_is_built_or_started(tmp_path: Path) -> None:
    """The first peer needs Kafka."""
    code = f"""
import sys
from tools.race import __main__
from tools.race.contestants import CONTESTANTS
for name in ("go", "spider"):
    CONTESTANTS[name].toolchain = CONTESTANTS[name].toolchain._replace(command="no-such-compiler")
sys.exit(__main__.main(["--folder", {str(tmp_path / "race")!r}, "--peers", "ours,spider,go"]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 69, ended.stderr
    assert ended.stderr.rstrip().endswith(KINDS["spider"].toolchain.remedy)
    assert not re.search("starting|building", ended.stderr)


@pytest.mark.parametrize("name", KINDS)
def test_the_compiled_ones_have_the_limits_of_all(name: str, track: Track, tmp_path: Path) -> None:
    plain, links = (KINDS[name](turn(track, tmp_path, BY_NAME[each])) for each in ("small", "links"))
    assert "--concurrency 32 --per-host 8" in " ".join(links.command())
    assert plain.environment()["SSL_CERT_FILE"] == str(track.authority)
    if KINDS[name].toolchain is contestants.GO:
        assert "--extract" in links.command()
        assert "--extract" not in plain.command()
        assert plain.environment()["GOMAXPROCS"] == "1"


@pytest.mark.parametrize("name", KINDS)
def test_the_sources_pin_all_that_they_need(name: str) -> None:
    """A checksum for each module or crate, and no other source of them than the public registry."""
    sources = KINDS[name].sources
    if (lock := sources / "Cargo.lock").exists():
        packages = lock.read_text().split("[[package]]")[1:]
        public = 'source = "registry+https://github.com/rust-lang/crates.io-index"\nchecksum = "'
        assert [text.split('"')[1] for text in packages if public not in text] == ["spider-peer"]
    else:
        module, sums = ((sources / file).read_text() for file in ("go.mod", "go.sum"))
        required = re.findall(r"^(?:require|\t)\s*(\S+ v\S+)", module, re.MULTILINE)
        assert required
        assert "replace" not in module
        assert [one for one in required if not re.search(f"^{re.escape(one)}(?:/go.mod)? h1:", sums, re.M)] == []
