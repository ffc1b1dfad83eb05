"""The race's programs in Go and Rust: built when they are named, and again when their sources change."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tools.race import contestants
from tools.race.contestant import Heat
from tools.race.contestants import (
    CONTESTANTS,
    RACERS,
    Build,
    Compiled,
    Toolchain,
    ToolchainMissing,
    bring_up_to_date,
)
from tools.race.options import read_options
from tools.race.workload import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
KINDS = {name: entry.kind for name, entry in CONTESTANTS.items() if issubclass(entry.kind, Compiled)}
COMPILER = """#!/bin/sh
test "$(dirname "$0")" = "${PATH%%:*}" || exit 3
grep -q error "$1/main" && exit 1
cp "$1/main" "$2/program"
"""


@pytest.fixture
def build(tmp_path: Path) -> Build:
    """Of one source, by a compiler that copies it, and refuses one that has an error."""
    sources, folder = tmp_path / "sources", tmp_path / "built" / "it"
    compiler = tmp_path / "installed" / "copier"
    sources.mkdir()
    (sources / "main").write_text("first")
    compiler.parent.mkdir()
    compiler.write_text(COMPILER)
    compiler.chmod(0o755)
    toolchain = Toolchain("Copying", "copier", str(compiler), ("{sources}", "{folder}"), "install the copier")
    return Build(toolchain, sources, folder, folder / "program")


def test_a_program_is_built_once_and_again_when_its_sources_change(build: Build) -> None:
    said: list[str] = []
    for text, builds in (("first", 1), ("first", 1), ("second", 2), ("first", 3)):
        (build.sources / "main").write_text(text)
        bring_up_to_date({"it": build}, said.append)
        assert build.program.read_text() == text
        assert len(said) == builds
    assert said[0] == f"building {build.program}: this can take minutes"


@pytest.mark.parametrize("change", ["new", "renamed", "gone", "in a folder", "program gone"])
def test_any_change_of_the_files_makes_it_stale(build: Build, change: str) -> None:
    (build.sources / "other").write_text("more")
    bring_up_to_date({"it": build}, print)
    assert build.is_current()
    if change == "new":
        (build.sources / "lock").write_text("")
    elif change == "renamed":
        (build.sources / "other").rename(build.sources / "another")
    elif change == "gone":
        (build.sources / "other").unlink()
    elif change == "in a folder":
        (build.sources / "deep").mkdir()
        (build.sources / "deep" / "file").write_text("")
    else:
        build.program.unlink()
    assert not build.is_current()


def test_what_is_no_source_changes_nothing_and_other_arguments_do(build: Build) -> None:
    bring_up_to_date({"it": build}, print)
    (build.sources / "target").mkdir()
    (build.sources / "target" / "program").write_text("made by hand")
    assert build.is_current()
    more = replace(build.toolchain, arguments=(*build.toolchain.arguments, "--faster"))
    assert not replace(build, toolchain=more).is_current()


def test_after_a_failed_build_the_program_of_before_does_not_count(build: Build) -> None:
    bring_up_to_date({"it": build}, print)
    (build.sources / "main").write_text("error")
    with pytest.raises(subprocess.CalledProcessError):
        bring_up_to_date({"it": build}, print)
    (build.sources / "main").write_text("first")
    assert not build.is_current()
    bring_up_to_date({"it": build}, print)
    assert build.is_current()


def test_a_compiler_in_the_path_comes_first(
    build: Build, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = tmp_path / "own" / "copier"
    own.parent.mkdir()
    own.write_text(COMPILER)
    monkeypatch.setenv("PATH", str(own.parent), prepend=os.pathsep)
    own.chmod(0o644)  # no program
    assert build.toolchain.find("it") == Path(build.toolchain.place)
    own.chmod(0o755)
    assert build.toolchain.find("it") == own


def test_a_compiler_is_found_in_the_home_folder(build: Build, monkeypatch: pytest.MonkeyPatch) -> None:
    home = Path(build.toolchain.place).parents[1]
    monkeypatch.setenv("HOME", str(home))
    assert replace(build.toolchain, place="~/installed/copier").find("it") == home / "installed" / "copier"


def test_without_a_compiler_nothing_is_built_and_the_message_says_what_to_install(build: Build) -> None:
    lacking = replace(
        build,
        toolchain=replace(build.toolchain, program="no-such-copier", place="/nowhere/copier"),
        program=build.folder / "another",
    )
    expected = (
        "--peers second needs Copying, but no-such-copier is neither in PATH nor at /nowhere/copier: "
        "install the copier"
    )
    with pytest.raises(ToolchainMissing) as raised:
        bring_up_to_date({"first": build, "second": lacking}, print)
    assert str(raised.value) == expected
    assert not build.program.exists()


def test_a_program_that_is_current_needs_no_compiler(build: Build) -> None:
    bring_up_to_date({"it": build}, print)
    Path(build.toolchain.place).unlink()
    bring_up_to_date({"it": build}, print)


def test_without_a_toolchain_bench_ends_with_69_and_says_what_to_install(tmp_path: Path) -> None:
    """Before a server is started: the first peer needs Kafka."""
    name = "go"
    code = f"""
import sys
from dataclasses import replace
from pathlib import Path
from tools.race import __main__
from tools.race.contestants import CONTESTANTS
kind, nowhere = CONTESTANTS[{name!r}].kind, Path({str(tmp_path)!r})
toolchain = replace(kind.build.toolchain, program="no-such-compiler", place=str(nowhere / "compiler"))
kind.build = replace(kind.build, toolchain=toolchain, folder=nowhere, program=nowhere / "program")
sys.exit(__main__.main(["--folder", {str(tmp_path / "race")!r}, "--peers", "ours,{name}"]))
"""
    ended = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=300, check=False
    )
    assert ended.returncode == 69, ended.stderr
    toolchain = KINDS[name].build.toolchain
    said = f"--peers {name} needs {toolchain.name}, but no-such-compiler is neither in PATH nor at "
    assert said in ended.stderr
    assert ended.stderr.rstrip().endswith(toolchain.remedy)
    assert "starting" not in ended.stderr


def test_the_compiled_ones_run_only_when_they_are_named() -> None:
    assert set(KINDS) == {"colly", "spider", "go"}
    assert not set(KINDS) & set(RACERS)
    assert read_options(["--folder", "unused", "--peers", "colly,spider,go"]).peers == (
        "colly",
        "spider",
        "go",
    )


@pytest.mark.parametrize("name", KINDS)
def test_the_compiled_ones_have_the_limits_of_all(name: str, tmp_path: Path) -> None:
    class Track:
        authority = tmp_path / "authority.pem"

    plain, links = (
        KINDS[name](Heat(workload, tmp_path, Track()))
        for workload in WORKLOADS[:2]  # type: ignore[arg-type]
    )
    command = " ".join(links.command())
    assert "--concurrency 32 --per-host 8" in command
    assert plain.environment()["SSL_CERT_FILE"] == str(tmp_path / "authority.pem")
    if issubclass(KINDS[name], contestants.InGo):
        assert "--extract" in command
        assert "--extract" not in plain.command()
        assert plain.environment()["GOMAXPROCS"] == "1"


@pytest.mark.parametrize("name", KINDS)
def test_the_sources_pin_all_that_they_need(name: str) -> None:
    """A checksum for each module or crate, and no other source of them than the public registry."""
    sources = KINDS[name].build.sources
    if (lock := sources / "Cargo.lock").exists():
        packages = lock.read_text().split("[[package]]")[1:]
        public = 'source = "registry+https://github.com/rust-lang/crates.io-index"\nchecksum = "'
        assert [text.split('"')[1] for text in packages if public not in text] == ["spider-peer"]
    else:
        module, sums = ((sources / file).read_text() for file in ("go.mod", "go.sum"))
        required = re.findall(r"^(?:require|\t)\s*(\S+ v\S+)", module, re.MULTILINE)
        assert required
        assert "replace" not in module
        assert [
            one for one in required if not re.search(f"^{re.escape(one)}(?:/go.mod)? h1:", sums, re.M)
        ] == []
