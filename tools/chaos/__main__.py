"""One run: sets the scene, lets the storm pass, compares, and leaves nothing behind."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from argparse import Namespace
from collections.abc import Sequence
from contextlib import ExitStack
from types import FrameType

from tools.chaos.check import checked
from tools.chaos.plan import plan, read_options
from tools.chaos.report import Logs, summary, table
from tools.chaos.storm import Stage, Storm

EXIT_WRONG, EXIT_INTERRUPTED = 1, 130
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_began = time.monotonic()


def say(text: str) -> None:
    """A line of progress."""
    print(f"[{time.monotonic() - _began:6.1f} s] {text}", flush=True)


def rage(options: Namespace) -> list[str]:
    """The whole run; what is wrong, a line each."""
    say(f"random seed {options.random_seed}, folder {options.folder}")
    events = plan(options)
    for event in events:
        say(f"  at {event}")
    say("starting the site" if options.embedded else "starting the servers and the site")
    with ExitStack() as stack:
        stage = Stage(options, stack, say)
        say(f"{stage.feed.count} seeds are produced{' and more all along' if options.soak else ''}")
        storm = Storm(stage, events)
        storm.run()
        say("stopping the crawlers")
        wrong = storm.wrong + stage.crew.stop()
        say("comparing")
        stage.site.stop()
        check = checked(stage, storm)
        wrong += stage.commands.wrong + check.wrong
        if storm.left:
            wrong.append(f"{len(storm.left)} events never came: the crawl was over, or stood still")
        if (lag := stage.lag()) != 0:
            wrong.append(f"the lag is {lag} in the end")
        logs = Logs(stage.crew.runs)
        wrong += summary(logs.wrong)
        print("\n".join(table(stage, storm, check, logs, wrong)), flush=True)
        return wrong


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the cleaning up is not to be interrupted
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """Run, and return the exit code."""
    options = read_options(arguments)
    for number in SIGNALS:
        signal.signal(number, _interrupt)
    is_wrong, interrupted = True, False
    try:
        is_wrong = bool(rage(options))
    except KeyboardInterrupt:
        interrupted = True
        say("interrupted, all is stopped")
    finally:
        if options.keep or (is_wrong and not interrupted):
            print(f"logs, record and data are in {options.folder}", flush=True)
        else:
            shutil.rmtree(options.folder)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_WRONG if is_wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
