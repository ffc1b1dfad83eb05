"""One run: sets the scene, lets the storm pass, compares, and leaves nothing behind."""

from __future__ import annotations

import shutil
import signal
import sys
import time
from collections.abc import Sequence
from types import FrameType

from tools.chaos import report
from tools.chaos.comparison import compared
from tools.chaos.logs import complaints, recoveries, summary
from tools.chaos.options import Options, read_options
from tools.chaos.plan import plan
from tools.chaos.rebalances import Rebalances
from tools.chaos.repeats import repeats
from tools.chaos.report import Outcome
from tools.chaos.staging import Stage, prepared
from tools.chaos.storm import Storm

EXIT_WRONG, EXIT_INTERRUPTED = 1, 130
_began = time.monotonic()


def say(text: str) -> None:
    """A line of progress."""
    print(f"[{time.monotonic() - _began:6.1f} s] {text}", flush=True)


def rage(options: Options) -> list[str]:
    """The whole run; what is wrong, a line each."""
    say(f"random seed {options.random_seed}, folder {options.folder}")
    events = plan(options)
    for event in events:
        say(f"  at {event}")
    say("starting the site" if options.embedded else "starting the servers and the site")
    with prepared(options) as stage:
        crew = stage.scene.crew
        along = " and more all along" if options.soak else ""
        say(f"{stage.scene.feed.count} seeds are produced{along}")
        rebalances = Rebalances(crew, options.rebalance_every, options.random_seed)
        storm = Storm(stage.scene, crew, stage.acts, stage.watched, events, rebalances, say)
        crew.start_all(options.processes)
        storm.run(options.timeout)
        stage.memory.end()
        say("stopping the crawlers")
        storm.happened.wrong += crew.stop()
        return _count(options, stage, storm, rebalances)


def _count(options: Options, stage: Stage, storm: Storm, rebalances: Rebalances) -> list[str]:
    say("comparing")
    scene = stage.scene
    scene.site.stop()
    verdict = compared(stage, storm.happened)
    wrong = storm.happened.wrong + (stage.commands.wrong if stage.commands else []) + verdict.wrong
    if left := storm.left():
        wrong.append(f"{left} events never came: the crawl was over, or stood still")
    if (lag := scene.lag()) != 0:
        wrong.append(f"the lag is {lag} in the end")
    found = complaints(scene.crew.runs)
    wrong += summary(found.wrong)
    troubles = stage.troubles()
    outages = [outage for _, periods in troubles for outage in periods]
    recovered = recoveries(storm.happened.deaths, outages)
    again = repeats(scene.site.record, scene.place_of, scene.crew.runs, storm.happened.deaths, outages)
    verdict.rows += stage.memory.rows()
    outcome = Outcome(options, verdict, storm.happened, rebalances, troubles, recovered, again, found, wrong)
    print("\n".join([*report.details(outcome), "", *report.table(outcome)]), flush=True)
    return wrong


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the cleaning up is not to be interrupted
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    """Run, and return the exit code."""
    options = read_options(arguments)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
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
