"""`scrapy urls explain`."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.commands.project import Project
from tests.tasks.test_pause_and_cancel import declare

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
