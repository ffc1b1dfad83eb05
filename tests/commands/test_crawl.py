"""`scrapy crawl`: the exit code says how it went."""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from scrapy.crawler import AsyncCrawlerRunner
from scrapy.settings import BaseSettings

from site_spider import SeedSpider
from site_spider.adapters.local.results import LocalSink
from site_spider.commands.crawl import Command
from tests.commands.project import Project
from tests.project_settings import ours


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("SITE_LINK_SCOPE=universe", "SITE_LINK_SCOPE is 'universe', but must be one of: host, domain, any."),
        ("SITE_SINK=local", "SITE_SINK is not a setting: did you mean SITE_SINKS?"),
        ("LOG_LEVEL=LOUD", "LOG_LEVEL is 'LOUD', but must be one of: "),
        ("LOG_FORMAT=json", "LOG_FORMAT is 'json', but must be as %(levelname)s: %(message)s."),
        ("LOG_FILE=nowhere/crawl-%p.log", "LOG_FILE is 'nowhere/crawl-1.log', which this user cannot "),
        ("LOG_FILE=/", "LOG_FILE is '/', which this user cannot write: make its folder, or name another file."),
    ],
)
def test_a_wrong_setting_ends_the_start_with_one_line_and_exit_code_78(project: Project, wrong: str, said: str) -> None:
    """No traceback; of two that are wrong the one of the command line counts."""
    other = {"SITE_LINK_SCOPE": "galaxy"} if "SITE_LINK_SCOPE" in wrong else {}
    ran = project.scrapy("crawl", "crawl_spider", "--nolog", "-s", wrong, **other)
    assert ran.returncode == 78
    [line] = ran.stderr.splitlines()
    assert said in line


@pytest.mark.parametrize("closes", ["0", "0.01"])
def test_a_server_that_is_away_at_the_start_is_exit_code_69(project: Project, closes: str) -> None:
    """After the time to wait, here none. One line names the address. Also if Scrapy has closed the spider before."""
    away = {"SITE_STARTUP_WAIT_SECONDS": "0", "SITE_KAFKA_BROKERS": "127.0.0.1:1"}
    ran = project.scrapy("crawl", "crawl_spider", "-s", f"CLOSESPIDER_TIMEOUT={closes}", **away)
    assert ran.returncode == 69, ran.stderr
    lines = [line for line in ran.stderr.splitlines() if "127.0.0.1:1" in line]
    errors = [line for line in lines if "ERROR" in line or line.startswith("scrapy crawl: ")]
    assert len(errors) == 1, ran.stderr
    assert "SITE_KAFKA_BROKERS" in errors[0]
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize(
    "command", [("crawl", "plain"), ("progress", "--until-done", "--spider", "plain"), ("service", "plain")]
)
def test_a_spider_that_takes_no_seeds_is_not_kept_running(project: Project, command: tuple[str, ...]) -> None:
    """Under crawl_spider.sh it would begin again and again; its watcher would wait for a topic.

    For a crawl the environment may name modules of spiders, as any setting.
    """
    modules = "tests.commands.plain_spider"
    if command[0] == "crawl":
        ran = project.process(*command, "--nolog", CRAWL_SPIDER_PROCESSES="2", SPIDER_MODULES=modules)
    else:
        named = ("-s", f"SPIDER_MODULES={modules}")
        ran = project.within(*command, "--nolog", *named, CRAWL_SPIDER_PROCESSES="2")
    assert ran.returncode == 78
    assert "Spider plain takes no seeds: `class PlainSpider(SeedSpider)` would" in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


def test_an_error_of_its_own_at_the_start_is_exit_code_71(project: Project) -> None:
    """With the traceback, once."""
    ran = project.scrapy("crawl", "crawl_spider", "-s", f"STATS_CLASS={__name__}.BrokenStats")
    assert ran.returncode == 71
    assert ran.stderr.count("Traceback (most recent call last)") == 1


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ('ITEM_PIPELINES={"no.such.Pipeline": 300}', "ITEM_PIPELINES names 'no.such.Pipeline', which cannot be loaded"),
        ("SCHEDULER=scrapy_redis.scheduler.Scheduler", "SCHEDULER names 'scrapy_redis.scheduler.Scheduler', which "),
        ("TWISTED_DNS_RESOLVER=no.such.Resolver", "TWISTED_DNS_RESOLVER names 'no.such.Resolver', which cannot be "),
    ],
)
def test_a_class_of_scrapys_settings_that_is_not_there_is_exit_code_78(project: Project, wrong: str, said: str) -> None:
    """Scrapy's error does not say in which setting it stands, and no further start would help."""
    ran = project.scrapy("crawl", "crawl_spider", "--nolog", "-s", wrong)
    assert ran.returncode == 78
    [line] = ran.stderr.splitlines()
    assert said in line


class BrokenStats:
    """Somebody's own, with a bug."""

    def __init__(self, _crawler: object) -> None:
        raise RuntimeError("not finished yet")


class BrokenSink:
    """Somebody's own, with a bug."""

    @classmethod
    def from_settings(cls, _settings: object) -> None:
        raise RuntimeError("not finished yet")

    for_statistics = LocalSink.for_statistics


def test_a_sink_that_raises_anything_is_exit_code_71(project: Project, tmp_path: Path) -> None:
    """The process ends instead of running without taking a seed; stderr has the reason, the log all of it."""
    log = tmp_path / "crawl.log"
    classes = json.dumps({"local": f"{__name__}.BrokenSink"})
    ran = project.scrapy("crawl", "crawl_spider", "--logfile", str(log), SITE_SINK_CLASSES=classes)
    assert ran.returncode == 71
    assert ran.stderr == "Cannot start: RuntimeError('not finished yet')\n"
    assert log.read_text().count("Traceback (most recent call last)") == 1


def test_a_start_is_three_lines_and_a_signal_stops_it_with_exit_code_0(project: Project) -> None:
    """Ctrl-C, as soon as it takes seeds; what a service sends is SIGTERM."""
    project.produce("seeds", (None, b"no seed"))
    lines = []
    with project.started("crawl", "crawl_spider", stderr=subprocess.PIPE, text=True) as running:
        for line in running.stderr:
            lines.append(line)
            if "Dead letter from seeds/" in line:
                while not project.log.partitions("seeds.dead-letters"):  # Scrapy leaves at once until its engine runs
                    time.sleep(0.01)
                running.send_signal(signal.SIGINT)
    assert running.returncode == 0
    kinds = [line.partition("] ")[2].partition(":")[0] for line in lines]
    assert kinds[: kinds.index("WARNING")] == ["INFO"] * 4, lines
    assert "started (bot: site_spider)" in lines[0]
    assert "Spider opened" in lines[1]
    where = f"results go to local ({project.data}); site_spider is pure Python"
    assert f"as a member of site_spider; {where}" in lines[2]
    assert len(list(project.log.read("seeds.dead-letters"))) == 1


class Feeding(SeedSpider):
    """Adds a feed as Scrapy's documentation of `update_settings` does."""

    name = "feeding"

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        super().update_settings(settings)
        settings.setdefault("FEEDS", {}).update({"items.jsonl": {"format": "jsonlines"}})


@pytest.mark.parametrize(
    ("spider", "given"), [(Feeding, {}), (SeedSpider, {"FEEDS": {"items.jsonl": {"format": "jsonlines"}}})]
)
def test_feeds_that_a_spider_or_the_command_line_adds_are_those_of_one_process(
    monkeypatch: pytest.MonkeyPatch, spider: type[SeedSpider], given: dict[str, Any]
) -> None:
    """Scrapy applies its options once more to a crawler that it starts."""
    monkeypatch.setenv("CRAWL_SPIDER_SLOT", "2")
    monkeypatch.setattr("site_spider.commands.crawl.redact_logs", Mock(side_effect=KeyboardInterrupt))
    command = Command()
    command.settings = ours(**given)
    runner = AsyncCrawlerRunner(command.settings)
    made = runner.create_crawler(spider)
    command.crawler_process = Mock(create_crawler=Mock(return_value=made))
    with pytest.raises(KeyboardInterrupt):
        command.run(["crawl_spider"], argparse.Namespace())
    assert [*runner.create_crawler(made).settings.getdict("FEEDS")] == ["items-2.jsonl"]


class Overwriting(SeedSpider):
    name = "overwriting"
    custom_settings = {"FEEDS": {"items.json": {"format": "json", "overwrite": True}}}  # noqa: RUF012 - as users write it


@pytest.mark.parametrize(
    ("is_trial", "given", "files"),
    [
        (False, {}, ["items.json"]),
        (True, {}, []),
        (True, {"FEEDS": {"mine.jsonl": {"format": "jsonlines"}}}, ["mine.jsonl"]),
    ],
)
def test_a_trial_leaves_the_feeds_of_a_crawl_alone(
    monkeypatch: pytest.MonkeyPatch, is_trial: bool, given: dict[str, Any], files: list[str]
) -> None:
    """`scrapy parse` emptied the file that a crawl was writing; what is named for the trial is written."""
    monkeypatch.setattr("site_spider.engine.scrapy_parts._Purpose.takes_seeds", not is_trial)
    settings = AsyncCrawlerRunner(ours(**given)).create_crawler(Overwriting).settings
    assert [*settings.getdict("FEEDS")] == files
