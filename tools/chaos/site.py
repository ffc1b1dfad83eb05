"""The site with the pages of this folder; the child process is `python -m tools.chaos.site`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tools.chaos import pages  # noqa: F401  registers them
from tools.chaos.processes import LEASH
from tools.chaos.workload import seed_of
from tools.site import handle
from tools.site.__main__ import main


class ChaosSite(handle.Site):
    """As its parent, but the child knows more pages, and its record is read as it grows."""

    asked: Counter[str]
    of_seed: Counter[int]  # different pages of each seed
    _offset = 0

    def start(self) -> None:
        """Start the child, out of reach of Ctrl-C, and wait until it listens."""
        arguments = ["--hosts", str(self.hosts), "--port", str(self.port), "--record", str(self.record)]
        self.asked, self.of_seed = Counter(), Counter()
        self._process = subprocess.Popen(
            [*LEASH, sys.executable, "-m", "tools.chaos.site", *arguments],
            cwd=handle.ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line.startswith("READY "):
            self.stop()
            raise RuntimeError(f"The site did not start: it said {line!r}.")
        self.port = int(line.split()[1])

    def read_on(self) -> Counter[str]:
        """How often each URL was answered so far; reads only what is new."""
        if self.record.exists():
            with self.record.open("rb") as file:
                file.seek(self._offset)
                new = file.read()
            whole = new[: new.rfind(b"\n") + 1]
            self._offset += len(whole)
            for line in whole.splitlines():
                entry = json.loads(line)
                self._note(url_of(entry), entry["path"])
        return self.asked

    def _note(self, url: str, path: str) -> None:
        self.asked[url] += 1
        if self.asked[url] == 1 and (seed := seed_of(path)) is not None:
            self.of_seed[seed] += 1


def url_of(entry: Mapping[str, Any]) -> str:
    """What a line of the record is about."""
    return f"http://{entry['host']}:{entry['port']}{entry['path']}"


def first_answers(record: Path) -> dict[str, float]:
    """When each URL was answered first."""
    first: dict[str, float] = {}
    with record.open() as lines:
        for line in lines:
            entry = json.loads(line)
            url = url_of(entry)
            first[url] = min(entry["sent"], first.get(url, entry["sent"]))
    return first


if __name__ == "__main__":
    main(sys.argv[1:])
