"""A stand-in for a virtual environment's `scrapy`, which does what a plan says and writes down what it sees.

Run as: scrapy crawl|progress ... with SCRIPTED_FOLDER in the environment. The file plan-crawl there has
a word for each start, the last one for all further: run (until SIGTERM), stubborn (ignores it), exit-N.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
import time
from pathlib import Path

STOP_SECONDS = 0.2  # what stopping takes; a second SIGTERM within it would be seen


def note(folder: Path, *words: object) -> None:
    """Append a line to the journal, whole whoever else writes."""
    with (folder / "journal").open("a") as file:
        file.write(" ".join(map(str, words)) + "\n")


def next_word(folder: Path, role: str) -> str:
    """Of the plan; processes that start at once take turns."""
    words = (folder / f"plan-{role}").read_text().split()
    with (folder / f"count-{role}").open("a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write("x")
        file.flush()
        file.seek(0)
        return words[min(len(file.read()), len(words)) - 1]


def main(folder: Path, arguments: list[str]) -> None:
    role, me = arguments[0], os.getpid()
    word = next_word(folder, role)

    def on_signal(number: int, frame: object) -> None:
        note(folder, "signal", role, me, signal.Signals(number).name)
        if word != "stubborn":
            time.sleep(STOP_SECONDS)
            note(folder, "stopped", role, me)
            sys.exit(0)

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        signal.signal(number, on_signal)
    if role == "crawl":
        slot, restarts = os.environ["CRAWL_SPIDER_SLOT"], os.environ["CRAWL_SPIDER_RESTARTS"]
        note(folder, "restarts", slot, restarts or "none")
    note(folder, "started", role, me, Path.cwd(), *arguments)  # the last word: a test may kill who has said it
    if word.startswith("exit-"):
        sys.exit(int(word.removeprefix("exit-")))
    while True:
        time.sleep(0.1)


if __name__ == "__main__":
    main(Path(os.environ["SCRIPTED_FOLDER"]), sys.argv[1:])
