"""The contestants in Go and Rust. Their programs are built when they are first named."""

from __future__ import annotations

from typing import ClassVar

from tools.race.build import Build, Toolchain
from tools.race.contestant import CONCURRENCY, PER_HOST, FileContestant
from tools.race.others import ENVIRONMENTS, PEERS

GO = Toolchain(
    name="Go",
    program="go",
    place="/usr/local/go/bin/go",
    arguments=("build", "-C", "{sources}", "-trimpath", "-buildvcs=false", "-o", "{folder}/program", "."),
    remedy="install Go 1.24 or newer (go.dev/doc/install, or the package golang-go of Debian 13)",
    variables={"CGO_ENABLED": "0"},  # pure Go needs no C compiler
)
RUST = Toolchain(
    name="Rust",
    program="cargo",
    place="~/.cargo/bin/cargo",
    arguments=(
        *("build", "--release", "--locked"),
        *("--manifest-path", "{sources}/Cargo.toml", "--target-dir", "{folder}"),
    ),
    remedy="install Rust 1.88 or newer (rustup.rs) and a C compiler",
)


def build(name: str, toolchain: Toolchain, program: str) -> Build:
    """Of the sources in `peers/name`."""
    folder = ENVIRONMENTS / name
    return Build(toolchain, PEERS / name, folder, folder / program)


class Compiled(FileContestant):
    """A program in another language, with the same work and limits."""

    build: ClassVar[Build]

    def command(self) -> list[str]:
        return [
            str(self.build.program),
            *("--seeds", str(self.heat.folder / "seeds.txt")),
            *("--output", str(self.output)),
            *("--concurrency", str(CONCURRENCY)),
            *("--per-host", str(PER_HOST)),
        ]


class InGo(Compiled):
    """Has one thread that runs goroutines: it has one core."""

    def command(self) -> list[str]:
        return [*super().command(), *(["--extract"] if self.heat.workload.extracts else [])]

    def environment(self) -> dict[str, str]:
        return super().environment() | {"GOMAXPROCS": "1"}


class Colly(InGo):
    """colly as its examples have it."""

    name = "colly"
    build = build("colly", GO, "program")


class BareGo(InGo):
    """The limit in Go."""

    name = "bare Go loop"
    build = build("bare_go", GO, "program")


class Spider(Compiled):
    """spider, with a `Website` for each host; it looks for links in every page."""

    name = "spider"
    build = build("spider", RUST, "release/spider-peer")
