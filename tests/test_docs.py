"""The documents agree with the code and with each other."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from scrapy.settings import default_settings

from site_spider import settings

ROOT = Path(__file__).resolve().parents[1]
DOCUMENTS = sorted(
    [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")], key=lambda path: path.relative_to(ROOT)
)
OURS = {name: value for name, value in vars(settings).items() if name.startswith("SITE_")}
SCRAPYS = {
    name: value
    for name, value in vars(settings).items()
    if name.isupper() and name not in OURS and value != getattr(default_settings, name)
}

_FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
_QUOTED = (
    "docs/examples/warc_sink.py",
    "site_spider/contracts/sink.py",
    "tests/contracts/test_warc_example.py",
)
_INDENTED = re.compile(r"^ {4,}.*$", re.MULTILINE)
_CODE = re.compile(r"`[^`\n]*`")
_LINK = re.compile(r"!?\[[^\]]*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ +(.+)$", re.MULTILINE)
_ROW = re.compile(r"^\| `([A-Z][A-Z0-9_]+)` \| (.*?) \| (.*?) \|", re.MULTILINE)
# where a developer's machine keeps things; put together so that this file is not one of those that name it
_MACHINE_PATHS = tuple(f"/{folder}/" for folder in ("work", "root"))
_TEXT = {".md", ".py", ".sh", ".svg", ".toml", ".txt", ".json", ".yml", ".cfg", ".xml", ".properties"}


def rows() -> dict[str, tuple[str, str]]:
    """Second and third cell of each row of docs/settings.md, by the name of the setting."""
    found = _ROW.findall((ROOT / "docs" / "settings.md").read_text(encoding="utf-8"))
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
    """Nobody has to look for a document."""
    linked = {(ROOT / link.partition("#")[0]).resolve() for link in _LINK.findall(prose(ROOT / "README.md"))}
    assert set(DOCUMENTS) - linked - {ROOT / "README.md"} == set()


def test_what_is_quoted_from_the_code_stands_there() -> None:
    """Each block of Python in docs/own-sinks.md is a piece of one of the files it is about."""
    text = (ROOT / "docs" / "own-sinks.md").read_text(encoding="utf-8")
    files = [(ROOT / name).read_text(encoding="utf-8") for name in _QUOTED]
    blocks = _PYTHON.findall(text)
    assert blocks
    assert [block for block in blocks if not any(block in file for file in files)] == []


def test_commands_and_files_in_the_documents_exist() -> None:
    """Scripts and files of the project that the documents name."""
    named = {
        (document.name, path)
        for document in DOCUMENTS
        for path in re.findall(
            r"(?<![\w/.])(?:\./)?((?:task_shell|site_spider|tests|resources|docs)/[\w./-]*\w)",
            document.read_text(encoding="utf-8"),
        )
    }
    assert named
    text = (ROOT / "docs" / "own-spiders.md").read_text(encoding="utf-8")
    theirs = {
        *re.findall(r"^# (\S+\.py)$", text, re.MULTILINE),
        *re.findall(r"> (tests/\S+)$", text, re.MULTILINE),
    }
    missing = {(name, path) for name, path in named if path not in theirs and not (ROOT / path).exists()}
    assert sorted(missing) == []


def test_no_file_names_a_place_on_a_developers_machine() -> None:
    """What is written here holds wherever it is checked out."""
    pattern = re.compile("|".join(_MACHINE_PATHS))
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    names = [ROOT / name for name in listed.stdout.splitlines()] if listed.returncode == 0 else DOCUMENTS
    files = [path for path in names if path.suffix in _TEXT and path.is_file()]
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if pattern.search(line)
    ]
    assert found == []
