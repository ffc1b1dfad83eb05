"""`scrapy urls explain`: what is printed, and that it says of any link what a crawl does with it."""

from __future__ import annotations

import html
import json
import random
import subprocess
from argparse import Namespace
from collections import defaultdict
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response
from scrapy.settings import Settings

from site_spider.commands import urls
from site_spider.page.directives import absolute
from site_spider.page.links import LinkBase
from site_spider.tasks.board import note_key
from site_spider.tasks.declaration import Usage
from tests.commands.project import Project
from tests.in_process.engine import ANSWERS, ScriptedHandler, crawl, page, settings_for
from tests.tasks.test_pause_and_cancel import TOPICS, declare, linked

PUBLIC = "http://8.8.8.8"


def refused(said: subprocess.CompletedProcess[str]) -> tuple[dict[str, str | None], int]:
    return json.loads(said.stdout)["refused_by"], said.returncode


def explain(project: Project, *arguments: str, **variables: str) -> tuple[dict[str, str | None], int]:
    return refused(project.scrapy("urls", "explain", *arguments, "--format", "json", **variables))


def test_what_refuses_a_url_is_named_and_a_link_to_it_decides_on_the_exit_code(project: Project) -> None:
    assert explain(project, f"{PUBLIC}/a") == ({"seed": None, "link": None}, 0)
    assert explain(project, f"{PUBLIC}/a/a/a") == ({"seed": None, "link": "rules"}, 1)
    assert explain(project, "http://127.0.0.1/") == ({"seed": "address", "link": "address"}, 1)
    assert explain(project, "http://127.0.0.1/", SITE_ALLOW_PRIVATE_HOSTS="true")[1] == 0
    assert explain(project, "ftp://a") == ({"seed": "url", "link": "url"}, 1)
    assert explain(project, f"{PUBLIC}/a", "--from", "http://9.9.9.9/")[0] == {"seed": None, "link": "scope"}


def test_limits_of_length_and_depth_count_as_in_the_crawl(project: Project) -> None:
    limits = {"URLLENGTH_LIMIT": "20", "DEPTH_LIMIT": "2"}
    assert explain(project, f"{PUBLIC}/a", "--depth", "2", **limits)[1] == 0
    assert explain(project, f"{PUBLIC}/abcdef", **limits) == ({"seed": None, "link": "length"}, 1)
    assert explain(project, f"{PUBLIC}/a", "--depth", "3", **limits) == ({"seed": None, "link": "depth"}, 1)
    assert explain(project, f"{PUBLIC}/a", "--depth", "3")[1] == 0


def test_the_source_of_the_page_that_a_link_stands_on_decides(project: Project, tmp_path: Path) -> None:
    sources = {"SITE_SOURCES_DIR": str(tmp_path / "sources")}
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "shop.yaml").write_text(
        "match: {hosts: [8.8.8.8, 9.9.9.9], urls: [/list]}\nfollow: [{allow: [/item/], deny: [/old/]}]"
    )
    page = ("--from", f"{PUBLIC}/list")
    assert explain(project, f"{PUBLIC}/item/1", *page, **sources)[1] == 0
    assert explain(project, "http://9.9.9.9/item/1", *page, **sources)[1] == 0  # in no scope, but of the source
    assert explain(project, f"{PUBLIC}/item/old/", *page, **sources)[0] == {"seed": None, "link": "source"}
    assert explain(project, f"{PUBLIC}/item/old/", "--from", f"{PUBLIC}/other", **sources)[1] == 0
    declare(project.data, source="shop")
    task = ("--from", f"{PUBLIC}/other", "--task-id", "t")
    assert explain(project, f"{PUBLIC}/b", *task, **sources)[0] == {"seed": None, "link": "source"}


def test_a_wrong_setting_is_not_said_by_the_code_of_a_refused_link(project: Project, tmp_path: Path) -> None:
    for wrong in ({"SITE_URL_RULES": str(tmp_path / "none")}, {"SITE_DROP_PARAMS": "none,a"}):
        said = project.scrapy("urls", "explain", PUBLIC, **wrong)
        assert (said.returncode, next(iter(wrong)) in said.stderr) == (78, True)


def test_a_table_says_why(project: Project, tmp_path: Path) -> None:
    file = tmp_path / "rules.yaml"
    file.write_text("8.8.8.8: {deny: ['*.pdf']}")
    url = f"{PUBLIC}/7/a.pdf?utm_source=x#page=2"
    said = project.scrapy("urls", "explain", url, SITE_URL_RULES=str(file), ROBOTSTXT_OBEY="true")
    rows = [line.split(maxsplit=3) for line in said.stdout.splitlines()]
    assert ["rules", "-", "no", "8.8.8.8 deny .pdf"] in rows
    assert f"compared as  -     -     {PUBLIC}/7/a.pdf\n" in said.stdout
    assert "robots.txt   -     -     is obeyed" in said.stdout
    assert "8.8.8.8/N/a.pdf?utm_source=x\n" in said.stdout
    said = project.scrapy("urls", "explain", f"{PUBLIC}/\xfc.pdf#x", SITE_URL_DENY="*.pdf,%C3%BC")
    assert "SITE_URL_DENY .pdf\n" in said.stdout
    assert " no list allows it\n" in project.scrapy("urls", "explain", PUBLIC, SITE_URL_ALLOW="*.html").stdout


WRITTEN = {  # a URL as people write it, and whether it is taken as a seed; as a link it is
    "/a b": False,
    "/a\\b": True,
    "/a/../b?c#d": True,
    "/index.html?&copy=1": True,
}


def test_a_url_that_is_no_seed_may_be_a_link(project: Project) -> None:
    for written, is_seed in WRITTEN.items():
        assert explain(project, PUBLIC + written) == ({"seed": None if is_seed else "url", "link": None}, 0), written
    declare(project.data, deny=["\xe4", "b%"])
    assert explain(project, f"{PUBLIC}/\xe4", "--task-id", "t")[0] == {"seed": "task", "link": None}
    assert explain(project, f"{PUBLIC}/b\xe4", "--task-id", "t")[0] == {"seed": "task", "link": "task"}
    assert explain(project, f"{PUBLIC}/b c", "--task-id", "t")[0] == {"seed": "url", "link": "task"}


def test_rules_of_a_task_count(project: Project, tmp_path: Path) -> None:
    declare(project.data, deny=["/no/"], allow=["/yes/"], drop_params=["x"])
    declare(project.data, "over", state="cancelled")
    declare(project.data, "flat", depth=0)
    assert explain(project, PUBLIC, "--task-id", "over")[0] == {"seed": "task", "link": "task"}
    assert explain(project, PUBLIC, "--task-id", "flat")[0] == {"seed": None, "link": "task"}
    assert explain(project, f"{PUBLIC}/no/yes/", "--task-id", "t")[0] == {"seed": "task", "link": "task"}
    assert explain(project, f"{PUBLIC}/a", "--task-id", "t")[0] == {"seed": None, "link": "task"}
    assert explain(project, f"{PUBLIC}/yes/", "--task-id", "t")[1] == 0
    table = project.scrapy("urls", "explain", f"{PUBLIC}/yes/?x=1&utm_a=2", "--task-id", "t").stdout
    assert f"{PUBLIC}/yes/?utm_a=2\n" in table
    said = project.scrapy("urls", "explain", PUBLIC, "--task-id", "other")
    reason = "scrapy urls: nobody has declared the task 'other'; leave out --task-id\n"
    assert (said.returncode, said.stderr) == (1, reason)


def test_links_to_a_host_whose_budget_is_spent_are_refused(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    declare(project.data, max_pages_host=2)
    monkeypatch.setitem(ANSWERS, "/", linked(9))
    crawl(project.data, [{"url": f"{PUBLIC}/", "meta": {"task_id": "t"}}], DEPTH_LIMIT=1)
    assert explain(project, f"{PUBLIC}/link/8", "--task-id", "t")[0] == {"seed": None, "link": "task"}
    assert "no    max_pages_host\n" in project.scrapy("urls", "explain", f"{PUBLIC}/link/8", "--task-id", "t").stdout
    assert explain(project, "http://9.9.9.9/link/8", "--task-id", "t")[1] == 0


def test_links_of_a_trap_that_were_not_followed_are_counted(project: Project) -> None:
    """By its pattern, within the task: where it holds now is known to processes alone."""
    declare(project.data)
    with closing(project.log.producer()) as producer:
        for process, count in (("p", 7), ("q", 5)):
            used = Usage(traps={"8.8.8.8/day/N": count})
            producer.send(TOPICS.tasks, note_key("t", process), used.value()).result()
    said = project.scrapy("urls", "explain", f"{PUBLIC}/day/9", "--task-id", "t")
    assert "8.8.8.8/day/N; links of the task that were not followed: 12\n" in said.stdout
    assert said.returncode == 0
    assert "not followed" not in project.scrapy("urls", "explain", f"{PUBLIC}/page/9", "--task-id", "t").stdout


def test_the_url_id_is_that_of_the_crawl_however_the_setting_is_written(project: Project) -> None:
    declare(project.data)
    ids = [
        json.loads(
            project.scrapy(
                "urls", "explain", PUBLIC, "--task-id", "t", "--format", "json", SITE_DUPEFILTER_SCOPE=scope
            ).stdout
        )["checks"][0]["says"]
        for scope in ("task", "Task", "group")
    ]
    assert ids[0] == ids[1] != ids[2]


def test_it_changes_nothing(project: Project) -> None:
    explain(project, PUBLIC)
    assert project.log.partitions("seeds") == 0


# --- it agrees with the crawl

HOSTS = ["d.test", "WWW.d.test", "o.test", "b\xfccher.test", "8.8.8.8", "d.test:80", "d.test:8080", "d.test."]
PARTS = ["a", "b", "item", "old", "1", "22", "index.html", "a b", "\xe4", "%c3%a4", "x.pdf", "y.ZIP", "2024-01"]
PARTS += ["..", "", ".", ";jsessionid=AB12", "c++", "q{1}", "'", '"', "\xe9;v=1", "(S(abcdefgh12345678))"]
QUERIES = ["", "", "?utm_source=1", "?id=2&UTM_x=1", "?id=2", "?sort=a b&id=2", "?PHPSESSID=1"]
QUERIES += ["?ref=\xe4&x_1", "?a&b", "?b&a"]
PATTERNS = ["/item/", r"\?sort=", r"\.pdf$", "old", "(?i)ZIP", "^https://", r"/\d+", "%C3%A4", "/a/a"]
PATTERNS += ["b", "*.pdf", "http://d.test/item"]
PAGE = "http://www.d.test/seed-page"


def some_url(chance: random.Random) -> str:
    parts = [chance.choice(PARTS) for _ in range(chance.choice([0, 1, 1, 2, 3, 6, 22]))]
    path = "/".join(parts * chance.choice([1, 1, 1, 3]))
    return f"{chance.choice(['http', 'https'])}://{chance.choice(HOSTS)}/{path}{chance.choice(QUERIES)}"


def some_rules(chance: random.Random, folder: Path) -> dict[str, Any]:
    """Settings, and a task t in half of the cases."""

    def patterns() -> list[str]:
        return chance.sample(PATTERNS, 2)

    def shape() -> dict[str, Any]:
        fields = {"deny": patterns(), "allow": patterns(), "repeats": 2, "segments": 3, "length": 30}
        return {name: value for name, value in fields.items() if chance.random() < 0.3}

    names = chance.sample(["*", "*.d.test", "d.test", "www.d.test", "8.8.8.8", "xn--bcher-kva.test"], 2)
    (folder / "rules.yaml").write_text(json.dumps({name: shape() for name in names}))
    settings = {
        "SITE_URL_RULES": str(folder / "rules.yaml"),
        "SITE_URL_DENY": json.dumps(patterns()),
        "SITE_URL_ALLOW": json.dumps(patterns()),
        "URLLENGTH_LIMIT": 50,
    }
    settings = {name: value for name, value in settings.items() if chance.random() < 0.4}
    settings["SITE_DROP_PARAMS"] = chance.choice(["tracking", "none", "tracking,ref,x_*", "ref"])
    settings["SITE_LINK_SCOPE"] = chance.choice(["host", "domain", "any", "any"])
    task = {"allow": patterns()[:1], "deny": patterns()[:1], "depth": 0, "scope": "any", "drop_params": ["id"]}
    task = {name: value for name, value in task.items() if chance.random() < 0.3}
    for name in ("allow", "deny"):  # of tasks all are patterns
        task[name] = [pattern for pattern in task.get(name, []) if not pattern.startswith("*")]
    if chance.random() < 0.5:
        declare(folder, **task)
        settings["task_id"] = "t"
    return settings


def explained(settings: Settings, url: str, task_id: str | None, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    command = urls.Command()
    command.settings = settings
    said: list[dict[str, Any]] = []
    monkeypatch.setattr(urls, "print_json", said.append)
    command.work(Namespace(args=["explain", url], task_id=task_id, seed=PAGE, depth=1, format="json"))
    return said[0]


@pytest.mark.parametrize("number", range(5))
def test_of_links_that_are_taken_each_is_fetched_once_and_of_others_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    chance = random.Random(number)
    settings = some_rules(chance, tmp_path)
    task_id = settings.pop("task_id", None)
    links = {some_url(chance) for _ in range(200)}
    body = "".join(f'<a href="{html.escape(url)}">' for url in links)
    fetched: set[str] = set()

    async def answer(_: object, request: Request) -> Response:
        fetched.add(request.url)
        return page(request, body if request.url == PAGE else "")

    monkeypatch.setattr(ScriptedHandler, "download_request", answer)
    monkeypatch.setattr(urls.socket, "getaddrinfo", lambda *_: [(0, 0, 0, "", ("8.8.4.4", 0))])
    asked = settings_for(tmp_path, **settings)
    said = {url: explained(asked, url, task_id, monkeypatch) for url in links}
    crawl(tmp_path, [{"url": PAGE, "meta": {"task_id": "t"}}], **settings)
    alike = defaultdict[str, set[str]](set)
    for url, found in said.items():
        link = absolute(url, LinkBase.parse("", "utf-8")) or ""
        if found["refused_by"]["link"] is not None:
            assert link not in fetched, found
        else:
            alike[next(check["says"] for check in found["checks"] if check["name"] == "compared as")].add(link)
    assert {form: len(some & fetched) for form, some in alike.items()} == dict.fromkeys(alike, 1)
