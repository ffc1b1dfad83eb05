"""What holds for every command: its help, a wrong setting or value, what a start imports, and Scrapy's own."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import cast

import pytest
from scrapy.cmdline import ScrapyArgumentParser
from scrapy.commands import ScrapyHelpFormatter
from scrapy.settings import Settings

from site_spider import SeedSpider, commands
from site_spider.commands.site_command import SiteCommand, Trial
from site_spider.installation import module_of
from tests.adapters.raw_server import answering, said
from tests.commands.project import ROOT, SCRAPY, Project, environment
from tests.in_process.engine import lag

PAGE = "http://127.0.0.1:1/"
SCRAPYS = {
    **dict.fromkeys(("bench", "check", "list", "shell"), ()),
    **dict.fromkeys(("fetch", "parse", "view"), (PAGE,)),
}
OURS = {
    **dict.fromkeys(("dead-letters", "frontier", "items", "progress", "recrawl", "results"), ()),
    **dict.fromkeys(("demo", "seed", "service", "top"), ()),
    **dict.fromkeys(("source", "task"), ("list",)),
    "console": ("--port", "0"),
    "kibana": ("import", "--url", PAGE),
    "urls": ("explain", PAGE),
}
OTHERS = {"crawl", "genspider", "settings", "version"}  # crawl: see test_crawl; the others use no setting
SHARED = {"__init__", "output", "site_command"}
ODD = [f"results --status {'9' * 23}", f"results --limit {'9' * 5_000}", "items --limit -1", "demo --port 99999"]
ODD += ("seed --task-id ", f"seed --task-id {'é' * 257}", "seed --task-id a\x1f", "seed --max-lag task:0")
ODD += (f"{line} \udcff" for line in ("results --url-id", "recrawl --host", "progress --topic", "seed --task-id"))
TOPICS = ("seed", "top", "console", "progress", "dead-letters", "recrawl")
ODD += (f"{name} --topic {topic}" for name in TOPICS for topic in ("", "a:b"))
ODD += ("progress --group ", "top --group ", "seed --spider ")
ODD += (f"task {words} \udcff" for words in ("start t --scope", "start t --deny", "show"))


def help_of(name: str) -> tuple[SiteCommand, str]:
    """As Scrapy makes it."""
    module = import_module(f"site_spider.commands.{name.replace('-', '_')}")
    command = cast("SiteCommand", module.Command())
    command.settings = Settings()
    parser = ScrapyArgumentParser(formatter_class=ScrapyHelpFormatter, description=command.long_desc())
    command.add_options(parser)
    return command, parser.format_help()


@pytest.mark.parametrize("name", OURS)
def test_help_ends_with_examples_as_they_are_typed(name: str) -> None:
    """One a line, each of the very command."""
    command, text = help_of(name)
    examples = text.partition("Examples:\n")[2].splitlines()
    assert examples
    assert all(f"scrapy {command.name}" in line for line in examples)
    assert command.name == name


@pytest.mark.parametrize("name", OURS)
def test_no_line_of_an_option_becomes_a_heading(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Wherever the lines break."""
    for columns in range(60, 100, 4):
        monkeypatch.setenv("COLUMNS", str(columns))
        before = help_of(name)[1].partition("Examples:\n")[0].splitlines()
        assert [line for line, under in pairwise(before) if set(under) == {"="}] in (["Usage", "Options"], ["Options"])


def test_scrapy_knows_every_command_by_its_name(project: Project) -> None:
    """And takes nothing else for one. One that is added is here, too."""
    ran = project.scrapy()
    names = {line.split()[0] for line in ran.stdout.splitlines() if line.startswith("  ")}
    assert names >= {*OURS, *SCRAPYS, *OTHERS}
    assert not {name for name in names if "_" in name}
    modules = {path.stem for path in Path(commands.__file__).parent.glob("*.py")}
    assert {name.replace("-", "_") for name in {*OURS, *SCRAPYS, *OTHERS}} == modules - SHARED


@pytest.mark.parametrize("wrong", ["SITE_KAFKA_BROKER=x:1", "SITE_MAX_SPAN_OFFSETS=many", "LOG_LEVEL=LOUD"])
@pytest.mark.parametrize("name", [*OURS, *SCRAPYS])
def test_an_unknown_name_and_a_wrong_type_end_each_command(project: Project, name: str, wrong: str) -> None:
    """Before anything is done, also where the command does not use the setting."""
    ran = project.within(name, *(OURS | SCRAPYS)[name], "-s", wrong)
    assert (ran.returncode, ran.stdout) == (78, ""), ran.stderr
    assert ran.stderr.startswith(f"scrapy {name}: {wrong.partition('=')[0]} is ")
    assert ran.stderr.count("\n") == 1
    assert not project.data.exists()


@pytest.mark.parametrize("name", ["results", "items", "recrawl"])
@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"SITE_SINKS": "elasticsearch", "SITE_ELASTICSEARCH_HOSTS": "nowhere:x"},
         "SITE_ELASTICSEARCH_HOSTS cannot be used: "),
        ({"SITE_SINKS": "loacl"}, "SITE_SINKS names 'loacl', but must name local, "),
        ({"SITE_SINKS": "kafka"}, "SITE_SINKS is 'kafka', but results can be read back from "),
    ],
)  # fmt: skip
def test_a_store_that_cannot_be_read_ends_what_uses_it(
    project: Project, name: str, given: dict[str, str], said: str
) -> None:
    """Also when the environment names it."""
    ran = project.within(name, **given)
    assert (ran.returncode, ran.stdout) == (78, ""), ran.stderr
    assert ran.stderr.startswith(f"scrapy {name}: {said}")


@pytest.mark.parametrize("line", ODD)
def test_an_odd_value_is_refused_with_the_name_of_its_option(project: Project, line: str) -> None:
    ran = project.within(*line.split(" "))
    assert (ran.returncode, ran.stdout) == (2, "")
    assert line.split(" ")[-2] in ran.stderr
    assert not project.data.exists()


IMPORT, CHECK = "kibana import --url http://h", "source check docs/examples/sources/books.yaml"
REFUSED = {  # what cannot be done, with its exit code and what is said
    "console --port 0 --host 0.0.0.0": (78, "SITE_CONSOLE_TOKEN"),
    "console --port 0 --certificate /no/such.pem": (78, "--certificate"),
    "console --port=-1": (2, "--port: '-1' is not a number from 0 to 65535"),
    **dict.fromkeys((f"top --seconds={seconds}" for seconds in ("0", "-1", "nan")), (2, "--seconds is ")),
    "crawl no_such_spider": (2, "no spider 'no_such_spider'; there is "),
    "crawl crawl_spider another": (2, "unexpected argument 'another'"),
    "crawl crawl_spider --until-done": (2, "unexpected argument '--until-done'"),
    "dead-letters replay --limit 1": (2, "scrapy dead-letters: --limit is for: scrapy dead-letters list\n"),
    "dead-letters replay --format json": (2, "--format is for: scrapy dead-letters list\n"),
    "dead-letters delete": (2, "scrapy dead-letters: unknown verb 'delete': say list or replay\n"),
    "kibana": (2, "say import"),
    "kibana export": (2, "unknown verb 'export': say import"),
    "kibana import": (2, "--url is missing"),
    **dict.fromkeys(
        (f"kibana import --url '{url}'" for url in (
            "127.0.0.1:5601", "ftp://host", "http://host:99999", "http://host:0", "http://", "http://h/a?b=c", "http://h/a\nb"
        )),
        (2, "--url must be http://host:port"),
    ),
    f"{IMPORT} --space ../x": (2, "--space is '../x'"),
    f"{IMPORT} --space ''": (2, "--space is ''"),
    f"{IMPORT} --user me": (2, "--user must be NAME:PASSWORD"),
    f"{IMPORT} --api-key ключ": (2, "no API key has"),
    "kibana import --url http://a:b@h --api-key k": (2, "two ways to log in"),
    f"{IMPORT} --api-key @/nowhere": (78, "--api-key"),
    f"{IMPORT} --api-key ''": (78, "--api-key"),
    f"{IMPORT} --user 'a:b\r\nc'": (78, "--user"),
    f"{IMPORT} --ca-cert /nowhere": (78, "--ca-cert"),
    "results --status ok": (2, "scrapy results: --status is 'ok', but must be a number such as 404, or none\n"),
    "items --spider typo": (2, "no spider 'typo'; there is crawl_spider"),
    "service -- typo": (2, "no spider 'typo'; there is crawl_spider"),
    "service ''": (2, "no spider ''; there is crawl_spider"),
    "service crawl_spider -- another": (2, "unexpected argument 'another'"),
    **dict.fromkeys((f"service -n={number}" for number in ("0", "-1", "many", "10000")), (2, "argument -n")),
    "seed no-such-file": (1, "scrapy seed: no-such-file cannot be read: No such file or directory\n"),
    "seed --taks-id job": (2, "unknown option --taks-id"),  # neither taken for a file nor ignored
    "seed - --close": (2, "--task-id"),
    "source list --url http://shop.test/": (2, "use it as: scrapy source list"),
    "source check": (2, "use it as: scrapy source list"),
    "source chekc x": (2, "use it as: scrapy source list"),
    f"{CHECK} http://a.test/ --url http://b.test/": (2, "the page is a URL already"),
    "task start t --deny '(?=x)'": (2, "RE2 does not take the pattern"),
    "task start t --scope world": (2, "scope is 'world'"),
    "task start t --weight 0": (2, "weight"),
    "task start 'a\x07b'": (2, "control character"),
    "task start ''": (2, "empty"),
    "task start t --max-time 15": (2, "argument --max-time: '15': its unit is missing; write 15s"),
    "task start t --expires 15": (2, "argument --expires: '15': its unit is missing; write 15s"),
    "task start -job": (2, "stands behind --"),
    "task set t": (2, "set needs a change"),
    "task set t colour=red": (2, "is no change"),
    "task set t state=cancelled": (2, "is no change"),
    "task set t max_time=15": (2, "15: its unit is missing; write 15s, 15m, 15h or 15d"),
    "task start t --file /nowhere": (1, "cannot be read"),
    "task show t": (1, "never declared"),
    "task pause t": (1, "'t' is not known"),
    "task cancel t": (1, "--new"),
    "task close t": (1, "--new"),
    "task set t weight=2": (1, "--new"),
    "task wait t": (1, "'t' is not known"),
    "task notify t": (1, "'t' is not known"),
    "task delete t": (1, "'t' is not known"),
    "task cancel t --dry-run": (2, "--dry-run is for: scrapy task"),  # who says so means to look
    "task resume t --max-pages 0": (2, "--max-pages is for: scrapy task"),
    "task start t --again": (2, "--again is for: scrapy task"),
    **dict.fromkeys(("task", "task grow t"), (2, "say one of start, list, ")),
    **dict.fromkeys(("task pause", "task pause t u", "task list t"), (2, "say: scrapy task ")),
    **dict.fromkeys(("urls", "urls explain", f"urls show {PAGE}"), (2, "use it as: scrapy urls explain URL")),
    "urls explain http://8.8.8.8 --from ''": (2, "--from: url: empty"),
    "urls explain http://8.8.8.8 --from a.test": (2, "--from: url: 'a.test' has no scheme"),
}  # fmt: skip


@pytest.mark.parametrize("line", REFUSED)
def test_what_cannot_be_done_is_said_and_nothing_is_written(project: Project, line: str) -> None:
    code, text = REFUSED[line]
    ran = project.within(*shlex.split(line))
    assert (ran.returncode, ran.stdout) == (code, ""), ran.stderr
    assert text in ran.stderr
    assert "Traceback" not in ran.stderr
    assert code == 2 or ran.stderr.count("\n") == 1
    assert project.log.partitions("seeds") == project.log.partitions("seeds.tasks") == 0


@pytest.mark.parametrize("line", ["seed no\udcff", "source check no\udcff", "task start t --file no\udcff"])
def test_a_file_may_have_a_name_of_any_bytes(project: Project, line: str) -> None:
    ran = project.within(*line.split())
    assert (ran.returncode, "no\\udcff" in ran.stderr) == (1, True)


@pytest.mark.parametrize(
    ("line", "code", "printed"),
    [
        ("results <&- >&- 2>&-", 0, ""),
        ("seed - <&- 2>&-", 0, "produced 0, refused 0\n"),
        ("list 2>&-", 0, "crawl_spider\n"),
    ],
)
def test_a_standard_stream_may_be_closed(project: Project, line: str, code: int, printed: str) -> None:
    """As some supervisors start what they start."""
    started = subprocess.run(
        ["bash", "-c", f"exec {shlex.join(SCRAPY)} {line}"],
        env=environment(project.data),
        cwd=ROOT,
        stdout=subprocess.PIPE,
        check=False,
    )
    assert (started.returncode, started.stdout.decode()) == (code, printed)


@pytest.mark.parametrize("line", ["seed -", "dead-letters --format json", "task list"])
def test_output_that_a_full_disk_does_not_take_is_said(project: Project, line: str) -> None:
    """And no file that was read is blamed."""
    project.produce("seeds.dead-letters", (None, b"x"))
    started = subprocess.run(
        ["bash", "-c", f"exec {shlex.join(SCRAPY)} {line} >/dev/full"],
        env=environment(project.data),
        cwd=ROOT,
        input=b"http://a.test/",
        capture_output=True,
        check=False,
    )
    said = f"scrapy {line.split(maxsplit=1)[0]}: the output cannot be written: No space left on device\n"
    assert (started.returncode, started.stderr.decode()) == (1, said)


_START = """
import sys
import scrapy.cmdline
from scrapy.settings import Settings
from scrapy.crawler import Crawler
from scrapy.spiderloader import SpiderLoader
settings = Settings()
settings.setmodule("site_spider.settings")
scrapy.cmdline._get_commands_dict(settings, inproject=True)
from scrapy.utils.misc import load_object
for name in ("EXTENSIONS", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "ITEM_PIPELINES"):
    for part in settings.get_component_priority_dict_with_base(name):
        load_object(part)
for part in (*settings["RETRY_EXCEPTIONS"], settings["DOWNLOAD_HANDLERS"]["https"]):
    load_object(part)
SpiderLoader.from_settings(settings).load("crawl_spider")
print(*sorted(sys.modules))
"""
_HTTP11 = "scrapy.core.downloader.handlers.http11"  # a tenth of a start
_NOT_AT_THE_START = {"confluent_kafka", "elasticsearch", "happybase", "jinja2", "redis", _HTTP11}

_COMMAND = """
import sys
from scrapy.cmdline import execute
sys.argv = ["scrapy", "task", "pause", "t", "--new"]
try:
    execute()
finally:
    print(*sorted(sys.modules))
"""
_NOT_FOR_A_PAUSE = {"site_spider.commands.seed", "site_spider.service.wiring", _HTTP11}


@pytest.mark.parametrize(
    ("program", "printed", "foreign"),
    [(_START, "", _NOT_AT_THE_START), (_COMMAND, "task t is paused", _NOT_FOR_A_PAUSE)],
)
def test_a_start_imports_no_more_than_it_needs(tmp_path: Path, program: str, printed: str, foreign: set[str]) -> None:
    """Of a crawl: all commands and parts, but not what one of them alone needs. A kill costs a start.

    Of a pause: neither other commands nor the crawl. It takes 0.6 s of CPU, most for Scrapy itself, and took 2.1 s.
    """
    environment = os.environ | {"SITE_DATA_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=environment)
    assert printed in done.stdout
    assert foreign & set(done.stdout.split()) == set()


@pytest.mark.parametrize(
    ("words", "module"),
    [
        (["/bin/scrapy", "task", "list"], "site_spider.commands.task"),
        (["scrapy", "crawl", "crawl_spider"], "site_spider.commands.crawl"),
        (["/site-packages/scrapy/__main__.py", "crawl", "crawl_spider"], "site_spider.commands.crawl"),
        (["/site_spider/__main__.py", "task"], "site_spider.commands"),
        (["scrapy", "startproject"], "site_spider.commands"),
        (["scrapy", "../x"], "site_spider.commands"),
        (["scrapy"], "site_spider.commands"),
        (["pytest", "task"], "site_spider.commands"),
        ([], "site_spider.commands"),
    ],
)
def test_scrapy_loads_the_command_that_was_asked_for(words: list[str], module: str) -> None:
    assert module_of(words) == module


def test_a_setting_is_shown_as_a_crawl_has_it(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of crawl_spider, if no other is named: the command line, then the environment, then custom_settings."""
    monkeypatch.setattr(SeedSpider, "custom_settings", {"SITE_SEED_TOPIC": "of the spider"})
    get = ("settings", "--get", "SITE_SEED_TOPIC")
    assert project.within(*get).stdout == "of the spider\n"
    assert project.within(*get, SITE_SEED_TOPIC="of the environment").stdout == "of the environment\n"
    ran = project.within(*get, "-s", "SITE_SEED_TOPIC=given", SITE_SEED_TOPIC="of the environment")
    assert ran.stdout == "given\n"


@pytest.fixture
def url() -> Iterator[str]:
    """Of one page with a link."""
    with answering(lambda _asked: said(b"<p>hello</p><a href=/x>x</a>", kind="text/html")) as address:
        yield f"{address}/"


@pytest.mark.parametrize("name", ["bench", "check", "fetch", "list", "parse", "shell", "view"])
def test_each_is_scrapys_behind_what_keeps_it_from_the_crawl(name: str) -> None:
    command = import_module(f"site_spider.commands.{name}").Command
    trial, scrapys = command.__mro__[1:3]
    assert (trial, scrapys.__module__) == (Trial, f"scrapy.commands.{name}")
    assert command.__module__ == f"site_spider.commands.{name}"  # or Scrapy would not find it


def test_no_seed_is_taken_and_nothing_written(project: Project, url: str) -> None:
    """Of a topic in which a seed waits; the settings come from the environment."""
    project.produce("mine", (None, json.dumps({"url": url}).encode()))
    before = sorted(path for path in project.data.rglob("*") if path.is_file())
    environment = {"SITE_SEED_TOPIC": "mine", "SITE_ALLOW_PRIVATE_HOSTS": "true"}
    words = ["parse", "--nolog", "--spider", "crawl_spider", "--pipelines", url]
    ran = project.scrapy(*words, **environment)
    assert ran.returncode == 0, ran.stderr
    assert "'status': 200" in ran.stdout + ran.stderr
    assert lag(project.log, "mine", "site_spider") == 1
    assert sorted(path for path in project.data.rglob("*") if path.is_file()) == before


def test_the_guard_for_hosts_holds_here_too(project: Project, url: str) -> None:
    """Unless the environment says otherwise, as for a crawl."""
    ran = project.scrapy("fetch", url)
    assert "hello" not in ran.stdout
    assert "SITE_ALLOW_PRIVATE_HOSTS" in ran.stderr


@pytest.mark.nightly
def test_bench_reaches_its_own_server(project: Project) -> None:
    """Which listens on loopback."""
    ran = project.scrapy("bench", "-s", "CLOSESPIDER_TIMEOUT=2", "-s", "CLOSESPIDER_ITEMCOUNT=1")
    assert ran.returncode == 0
    assert "response_status_count/200" in ran.stderr
    assert not (project.data / "results.sqlite").exists()


def test_a_seed_without_a_url_is_for_spiders_that_make_requests_of_it(project: Project) -> None:
    """`scrapy seed --spider NAME` knows which do."""
    line = '{"meta": {"forum": 7}}\n'
    ran = project.scrapy("seed", "-", stdin=line)
    assert (ran.returncode, ran.stdout) == (1, "produced 0, refused 1\n")
    assert "url: missing" in ran.stderr
    modules = ("-s", "SPIDER_MODULES=tests.service.test_own_spiders,site_spider.spiders")
    ran = project.scrapy("seed", "-", "--spider", "forum", *modules, stdin=line)
    assert (ran.returncode, ran.stdout) == (0, "produced 1, refused 0\n"), ran.stderr
    (message,) = project.log.read("seeds")
    assert json.loads(message.value or b"") == {"meta": {"forum": 7}}
    assert message.key
