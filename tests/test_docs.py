"""The documents agree with the code and with each other."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import tomllib
from dataclasses import fields
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import pytest
from scrapy import commands as scrapys
from scrapy.settings import default_settings

from site_spider import settings
from site_spider.adapters.elasticsearch.index_template import TEXT
from site_spider.commands.site_command import USUAL_SPIDER
from site_spider.results.document import MARK, Result
from site_spider.seed.topics import CrawlTopics
from site_spider.service import supervisor
from site_spider.spiders.crawl_spider import SeedSpider
from tests.in_process.engine import ANSWERS, crawl, page
from tools import docs

ROOT = Path(__file__).resolve().parents[1]
COMMANDS = ROOT / "docs" / "commands.md"
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda path: path.relative_to(ROOT))
OURS = {name: value for name, value in vars(settings).items() if name.startswith("SITE_")}
SCRAPYS = {
    name: value
    for name, value in vars(settings).items()
    if name.isupper() and name not in OURS and value != getattr(default_settings, name)
}

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_QUOTED = "docs/examples/lines_sink.py"
_INDENTED = re.compile(r"^ {4,}.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
# "Change it if ..." goes on with it
_CONDITION = re.compile(r"(you|your|sites|some|many of|retries or links must|half of)\b")
_LOG_LINE = re.compile(r"`([^`]+)`")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| `([A-Z][A-Z0-9_]+)` \| (.*?) \| (.*?) \|", re.MULTILINE)
# where a developer's machine keeps things; put together so that this file is not one of those that name it
_MACHINE_PATHS = tuple(f"/{folder}/" for folder in ("work", "root"))
_TEXT = {".md", ".py", ".sh", ".svg", ".toml", ".txt", ".json", ".yml", ".cfg", ".xml", ".properties"}


def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def sources_of(*folders: str) -> dict[str, str]:
    """The text of each file of Python or sh below these, by its path."""
    files = [path for folder in folders for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".sh")]
    return {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8") for path in files}


def rows() -> dict[str, tuple[str, str]]:
    """Second and third cell of each row of docs/settings.md, by the name of the setting."""
    found = _ROW.findall(text_of("docs/settings.md"))
    described = {name: (second, third) for name, second, third in found}
    assert len(described) == len(found), "a setting stands in two rows"
    return described


def shown(value: Any) -> str:
    """A default as docs/settings.md writes it."""
    if value == "":
        return "empty"
    if isinstance(value, bool):
        return f"`{str(value).lower()}`"
    return f"`{json.dumps(value) if isinstance(value, dict) else value}`"


def prose(document: Path) -> str:
    """The text without code, where brackets mean something else."""
    text = document.read_text(encoding="utf-8")
    return _CODE.sub("", _INDENTED.sub("", _FENCE.sub("", text)))


def anchors(document: Path) -> set[str]:
    """The anchors that headings get."""
    headings = _HEADING.findall(_FENCE.sub("", document.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_setting_of_ours_is_described_with_its_default() -> None:
    """Neither a setting without a row nor a row without a setting, and the same default."""
    described = {name: default for name, (default, _) in rows().items() if name.startswith("SITE_")}
    assert described == {name: shown(value) for name, value in OURS.items()}


def test_every_setting_of_ours_says_when_to_change_it() -> None:
    """The last column is a condition about the reader."""
    text = text_of("docs/settings.md")
    found = re.findall(r"^\| `(SITE_[A-Z0-9_]+)` \|.* \| (.*?) \|$", text, re.MULTILINE)
    wrong = {name: cell for name, cell in found if not _CONDITION.match(cell)}
    assert {name for name, _ in found} == set(OURS)
    assert wrong == {}
    assert text.count("| setting | default | meaning | Change it if |") == text.count("| meaning |")


def test_every_setting_of_scrapy_that_we_change_is_described() -> None:
    """With our value and Scrapy's, where they are short."""
    described = {name: cells for name, cells in rows().items() if not name.startswith("SITE_")}
    assert described.keys() == SCRAPYS.keys()
    for name, (ours, theirs) in described.items():
        if isinstance(SCRAPYS[name], bool | int | float | str):
            assert ours == shown(SCRAPYS[name]), name
            original = getattr(default_settings, name)
            assert theirs == ("none" if original is None else shown(original)), name


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """Relative links name a file of the project, and a heading in it if they say so."""
    wrong = []
    for link in _LINK.findall(prose(document)):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            wrong.append(link)
    assert wrong == []


def test_the_readme_names_every_document() -> None:
    """Or its folder. Nobody has to look for a document."""
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(ROOT / "README.md"))}
    named = linked | {ROOT / "README.md"}
    assert [path for path in DOCUMENTS if path not in named and path.parent not in linked] == []


def test_what_is_quoted_from_the_code_stands_there() -> None:
    """Each block of Python in docs/own-sinks.md is a piece of the example."""
    text = text_of("docs/own-sinks.md")
    example = text_of(_QUOTED)
    blocks = _PYTHON.findall(text)
    assert blocks
    assert [block for block in blocks if block not in example] == []


def test_commands_and_files_in_the_documents_exist() -> None:
    """Scripts and files of the project that the documents name."""
    pattern = re.compile(r"(?<![\w/.])(?:\./)?((?:task_shell|site_spider|tests|tools|resources|docs)/[\w./-]*\w)")
    named = {(document.name, path) for document in DOCUMENTS for path in pattern.findall(document.read_text("utf-8"))}
    assert named
    text = text_of("docs/own-spiders.md")
    theirs = {*re.findall(r"^# (\S+\.py)$", text, re.MULTILINE), *re.findall(r"> (tests/\S+)$", text, re.MULTILINE)}
    missing = {(name, path) for name, path in named if path not in theirs and not (ROOT / path).exists()}
    assert sorted(missing) == []


def test_tests_that_the_documents_name_by_a_piece_of_their_names_exist() -> None:
    texts = "".join(document.read_text("utf-8") for document in DOCUMENTS)
    named = re.findall(r"`(\S+\.py)\s+-k\s+(\w+)`", texts)
    assert len(named) > 20
    found = {(path, piece): re.search(rf"def test_\w*{piece}", text_of(f"tests/{path}")) for path, piece in named}
    assert [one for one, test in found.items() if test is None] == []


def test_no_file_names_a_place_on_a_developers_machine() -> None:
    """What is written here holds wherever it is checked out."""
    pattern = re.compile("|".join(_MACHINE_PATHS))
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    names = [ROOT / name for name in listed.stdout.splitlines()] if listed.returncode == 0 else DOCUMENTS
    files = [path for path in names if path.suffix in _TEXT and path.is_file()]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []


def test_the_map_of_modules_is_that_of_the_source() -> None:
    """`python -m tools.docs` writes it."""
    assert docs.updated("modules") == text_of("docs/architecture.md")


def test_the_reference_of_commands_is_that_of_their_help() -> None:
    """`python -m tools.docs` writes it."""
    assert docs.updated("commands") == COMMANDS.read_text(encoding="utf-8")


def test_the_usual_spider_is_that_of_the_help() -> None:
    assert f"(default: {USUAL_SPIDER};" in re.sub(r"\s+", " ", text_of("docs/commands.md").replace("`", ""))


def test_what_a_spider_may_set_is_described() -> None:
    """Each word that other pages use of it."""
    text = text_of("docs/own-spiders.md")
    assert [name for name in ("page_results", "seed_callbacks") if f"{name} = " not in text] == []


def test_every_exit_code_of_the_source_is_in_the_table() -> None:
    """And the table has no others."""
    table = set(map(int, re.findall(r"^\| (\d+) \|", COMMANDS.read_text("utf-8"), re.MULTILINE)))
    texts = sources_of("site_spider").values()
    found = {int(code) for text in texts for code in re.findall(r"^EXIT_[A-Z]+ = (\d+)", text, re.MULTILINE)}
    assert table == found | {0, supervisor.KILLED}


def test_the_table_of_exit_codes_names_the_commands_that_give_them() -> None:
    """But for codes that any command may give. `service` and its script end as their supervisor does."""
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", COMMANDS.read_text("utf-8"), re.MULTILINE)
    of_any = {int(code) for code, said in rows if re.search(r"\b(all|commands)\b", said)}
    told = {(int(code), name) for code, said in rows for name in re.findall(r"`([\w.]+)", said)}
    ends = supervisor.UNAVAILABLE, supervisor.SETUP, supervisor.KILLED
    used = {(code, name) for code in ends for name in ("service", "crawl_spider.sh")}
    for path in (docs.PACKAGE / "commands").glob("[!_]*.py"):
        module = import_module(f"site_spider.commands.{path.stem}")
        body = "".join(re.findall(r"^ .*", path.read_text("utf-8"), re.MULTILINE))  # without imports
        used |= {(getattr(module, name), path.stem) for name in re.findall(r"EXIT_[A-Z]+", body)}
    assert {(code, name) for code, name in told if code not in of_any and name not in ("bench.sh", "chaos.sh")} == {
        (code, name) for code, name in used if code not in of_any
    }


def test_folders_say_what_they_never_do() -> None:
    """Three sentences: what it is, what it owns, what it never does."""
    folders = [path for path in docs.PACKAGE.rglob("__init__.py") if path.parent != docs.PACKAGE]
    said = {path.parent.name: ast.get_docstring(ast.parse(path.read_text("utf-8"))) or "" for path in folders}
    assert len(said) > 15
    assert [name for name, text in said.items() if not re.search(r"\bnever\b", text)] == []
    assert [name for name, text in said.items() if not re.search(r"\bowns?\b", text)] == []


@pytest.mark.parametrize(("document", "least"), [("one-seed", 25), ("architecture", 20)])
def test_modules_that_are_named_without_their_root_exist(document: str, least: int) -> None:
    files = re.findall(r"`((?!tests/)\w+/[\w/]+\.py)`", text_of(f"docs/{document}.md"))
    assert len(set(files)) > least
    assert [name for name in files if not (ROOT / "site_spider" / name).is_file()] == []


def test_documents_are_short() -> None:
    """Together in words, some in lines; and the spider of the README."""
    assert sum(len(path.read_text(encoding="utf-8").split()) for path in (ROOT / "docs").glob("*.md")) <= 33_000
    most = {"README.md": 150, "docs/architecture.md": 400, "docs/one-seed.md": 60, "docs/web.md": 200}
    assert [name for name, lines in most.items() if len(text_of(name).splitlines()) > lines] == []
    (spider,) = _PYTHON.findall(text_of("README.md"))
    assert len([line for line in spider.splitlines() if line]) <= 12


def test_lines_of_documents_are_wrapped() -> None:
    """But for tables and code; decisions and CHANGELOG are as they were written."""
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        text = _INDENTED.sub("", _FENCE.sub("", path.read_text(encoding="utf-8")))
        assert [line for line in text.splitlines() if len(line) > 120 and line[0] != "|"] == [], path


def test_the_spider_of_the_readme_crawls(tmp_path: Path) -> None:
    """As it is printed there."""
    (source,) = _PYTHON.findall(text_of("README.md"))
    names: dict[str, Any] = {}
    exec(source, names)
    spider = names["QuotesSpider"]
    assert issubclass(spider, SeedSpider)
    quote = "<div class=quote><span class=text>Less is more</span><small>Mies</small></div>"
    ANSWERS["/quotes"] = lambda request: page(request, quote)
    crawled = crawl(tmp_path, [{"url": "http://host.test/quotes", "meta": {"url_id": "1"}}], spider)
    (item,) = crawled.items.values()
    assert (item["text"], item["author"], item["_page"]["url_id"]) == ("Less is more", "Mies", "1")
    assert crawled.documents["1"]["status"] == 200


def messages_in_the_source() -> str:
    """All texts that the source can log or print, one a line, with each placeholder as a `#`."""
    texts = [
        "".join(
            part.value if isinstance(part, ast.Constant) else "#"
            for part in (node.values if isinstance(node, ast.JoinedStr) else [node])
        )
        for text in sources_of("site_spider").values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
    ]
    return "\n".join(re.sub(r"%(\.\d)?[sdfr]", "#", text) for text in texts)


def pieces(quoted: str) -> list[str]:
    """The literal parts of a quoted log line: no `...`, no letters for values, no numbers."""
    cut = re.split(r"\.\.\.|'?\b(?:[A-Z]|ID|FILE)\b'?(?:/[A-Z])?|=N|seeds/0|\b\d+\b", quoted)
    return [piece.strip(" ,:;.()") for piece in cut if len(piece.strip(" ,:;.()")) > 2]


def test_log_lines_in_operations_are_those_of_the_source() -> None:
    """Each piece between placeholders of each quoted line."""
    text = text_of("docs/operations.md")
    section = text.partition("## Log lines")[2].partition("\n## ")[0]
    rows_ = [line.split(" | ")[0] for line in section.splitlines() if line.startswith("| `")]
    quoted = [line for row in rows_ for line in _LOG_LINE.findall(row)]
    source = messages_in_the_source()
    assert len(quoted) > 15
    assert [(line, piece) for line in quoted for piece in pieces(line) if piece not in source] == []


def test_files_named_in_the_source_exist() -> None:
    """In docstrings and comments, from the root of the project."""
    pattern = re.compile(r"(?<![\w/.\"'$])((?:task_shell|site_spider|tests|tools|docs)/[\w/-]+\.(?:py|sh|md))")
    texts = sources_of("site_spider", "task_shell", "tools")
    named = {(path, name) for path, text in texts.items() for name in pattern.findall(text)}
    assert named
    assert sorted((path, name) for path, name in named if not (ROOT / name).exists()) == []


def test_replay_and_repeat_are_two_words() -> None:
    """A replay puts dead letters back; a seed that is polled again is a repeat."""
    found = {path.partition("/")[2] for path, text in sources_of("site_spider").items() if "replay" in text.lower()}
    of_operators = ("dead_letter_replay.py", "console/", "commands/dead_letters.py", "commands/console.py")
    assert [name for name in found if not name.startswith(of_operators)] == []


def test_every_field_of_a_document_is_described() -> None:
    """Those of results, and what stores add."""
    text = text_of("docs/seeds-and-results.md")
    cells = re.findall(r"^- (`\w+`(?:, `\w+`)*): ", text.partition("## Results")[2], re.MULTILINE)
    described = [name for cell in cells for name in re.findall(r"`(\w+)`", cell)]
    assert set(described) == {field.name for field in fields(Result)} | {MARK, TEXT}


def test_no_document_has_a_heading_twice() -> None:
    """A part that is there twice is changed in one place only."""
    for document in DOCUMENTS:
        headings = _HEADING.findall(_FENCE.sub("", document.read_text(encoding="utf-8")))
        assert [heading for heading in set(headings) if headings.count(heading) > 1] == [], document


def test_counts_of_objects_for_kibana_are_those_of_the_file() -> None:
    """The last line of an export is none: it counts the others."""
    lines = text_of("resources/kibana/site_spider.ndjson").splitlines()
    count = sum("type" in json.loads(line) for line in lines)
    text = text_of("docs/observability.md")
    assert re.findall(r"`imported (\d+) of (\d+) objects`", text) == [(str(count), str(count))]


def test_the_commands_for_other_projects_are_those_of_the_package() -> None:
    """Those that Scrapy does not have."""
    project = tomllib.loads(text_of("pyproject.toml"))["project"]
    ours = set(project["entry-points"]["scrapy.commands"]) - {module.name for module in iter_modules(scrapys.__path__)}
    assert set(re.findall(r"^### scrapy ([\w-]+)$", text_of("docs/commands.md"), re.MULTILINE)) == ours


def test_what_remains_after_an_uninstall_names_all_topics() -> None:
    topics = CrawlTopics.of(OURS)
    names = {*topics.tiers, *topics[2:], topics.parked, topics.control, topics.clock, topics.pages}
    text = text_of("docs/deploying.md").partition("after an uninstall\n")[2]
    row = re.search(r"^- Kafka: the topics (.*?); the groups", text, re.MULTILINE | re.DOTALL)
    assert row is not None
    sinks = {OURS["SITE_RESULTS_TOPIC"], OURS["SITE_ITEMS_TOPIC"]}
    assert set(re.findall(r"`(.*?)`", row[1])) == names | sinks


def test_the_comparison_with_scrapy_has_the_defaults() -> None:
    """Each number of the table."""
    text = text_of("docs/from-scrapy.md")
    theirs, ours = default_settings, settings
    domain = theirs.CONCURRENT_REQUESTS_PER_DOMAIN
    assert f"| {theirs.CONCURRENT_REQUESTS}, and {domain} a domain | {ours.CONCURRENT_REQUESTS}, and" in text
    assert f"`DEPTH_LIMIT` is {ours.DEPTH_LIMIT};" in text
    sizes = theirs.DOWNLOAD_MAXSIZE // 2**30, theirs.DOWNLOAD_TIMEOUT, ours.DOWNLOAD_MAXSIZE // 2**20
    assert "| {} GiB, {} s | {} MiB, {} s |".format(*sizes, ours.DOWNLOAD_TIMEOUT) in text
