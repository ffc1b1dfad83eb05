"""The site with the pages of this folder; the child process is `python -m tools.chaos.site`."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter

from tools.chaos import pages  # noqa: F401  registers them
from tools.chaos.processes import LEASH
from tools.site import handle
from tools.site.__main__ import main

HOSTS = 60


class ChaosSite(handle.Site):
    """As its parent, but the child knows more pages, and its record is read as it grows."""

    asked: Counter[str]
    _offset = 0

    def start(self) -> None:
        """Start the child, out of reach of Ctrl-C, and wait until it listens."""
        arguments = ["--hosts", str(self.hosts), "--port", str(self.port), "--record", str(self.record)]
        self.asked = Counter()
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
                self.asked[f"http://{entry['host']}:{entry['port']}{entry['path']}"] += 1
        return self.asked


if __name__ == "__main__":
    main(sys.argv[1:])
