"""`python -m tests.simulation`: runs storms by their numbers."""

from __future__ import annotations

import os
import sys

if os.environ.get("PYTHONHASHSEED", "random") == "random":  # sets are walked in one order then
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])

from tests.simulation.virtual import cpu_seconds  # first: it replaces clock and threads

import argparse
import logging
import shlex
from contextlib import nullcontext
from itertools import count

from tests.tasks.world import planted
from tests.simulation.mutants import CHOSEN, MISSED, MUTANTS
from tests.simulation.run import Outcome, run, shrunk
from tests.simulation.troubles import ACTS, GROUPS, Trouble, troubles_of

MUTANT_NUMBERS, TRACE_LINES = 120, 200  # some 60 s of CPU for each; of the shortest run that fails


def main() -> int:
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger().handlers[:] = [logging.NullHandler()]
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    options = _options(sys.argv[1:])
    for line in sys.stdin if options.serve else ():
        print("status", _obey(_options(shlex.split(line))), flush=True)
    return 0 if options.serve else _obey(options)


def _obey(options: argparse.Namespace) -> int:
    if options.mutants is not None:
        return try_mutants(options)
    with planted(MUTANTS[options.plant]) if options.plant else nullcontext():
        return search(options)


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    add, kinds = parser.add_argument, f"comma list of {', '.join([*GROUPS, *ACTS])}"
    new = [int.from_bytes(os.urandom(4)) % 10**9]
    add("--seed", type=int, nargs="+", default=new, metavar="N", help="these numbers, else a new one")
    add("--minutes", type=float, metavar="M", help="run numbers from N on for so much CPU time")
    add("--only", default=[], type=_kinds, metavar="KINDS", help=kinds)
    add("--troubles", metavar="PLACES", help="only these of a number's troubles, as a failure prints them")
    add("--mutants", nargs="?", const="", metavar="NAME", help="look for planted faults: all, or these")
    add("--plant", choices=[*MUTANTS], metavar="NAME", help="run with this fault")
    add("--trace", action="store_true", help="print all that happens")
    add("--serve", action="store_true", help="obey lines of standard input, each with such options")
    return parser.parse_args(arguments)


def _kinds(told: str) -> list[str]:
    kinds = told.split(",")
    if unknown := sorted({*kinds} - {*GROUPS, *ACTS}):
        raise argparse.ArgumentTypeError(f"not known: {', '.join(unknown)}")
    return kinds


def search(options: argparse.Namespace) -> int:
    """1 when a number fails."""
    began, first, failed, pages, done = cpu_seconds(), options.seed[0], 0, 0, 0
    if options.minutes:
        print(f"numbers from {first} on", flush=True)
    for number in count(first) if options.minutes else options.seed:
        if options.minutes and cpu_seconds() - began > 60 * options.minutes:
            break
        troubles = troubles_of(number, options.only)
        if options.troubles is not None:
            troubles = [one for one in troubles if str(one.place) in options.troubles.split(",")]
        outcome = run(number, troubles, keeps_trace=options.trace)
        done, pages, failed = done + 1, pages + outcome.pages, failed + bool(outcome.violations)
        print(*outcome.lines, sep="\n", end="\n" * bool(outcome.lines))
        if outcome.violations:
            report(outcome, troubles, options)
        elif not options.minutes:
            print(outcome, flush=True)
    rate = done / (cpu_seconds() - began)
    print(f"{done} runs from {first} on, {failed} failed, {pages} pages, {rate:.2f} runs a second of CPU")
    return 1 if failed else 0


def try_mutants(options: argparse.Namespace) -> int:
    """How many are not found, besides those that are known to be missed."""
    missed = 0
    for mutant in [one for one in MUTANTS if options.mutants in one]:
        began, found, number, kinds = cpu_seconds(), "", 0, options.only or CHOSEN.get(mutant, [])
        while not found and number < MUTANT_NUMBERS:
            number += 1
            with planted(MUTANTS[mutant]):
                found = next((kind for kind, _ in run(number, troubles_of(number, kinds)).violations), "")
        missed += not found and mutant not in MISSED
        print(f"| {mutant} | {found or 'not found'} | {number} | {cpu_seconds() - began:.1f} |", flush=True)
    return missed


def report(outcome: Outcome, troubles: list[Trouble], options: argparse.Namespace) -> None:
    """What failed, and the least that makes it fail."""
    print(outcome, *(f"    {kind}: {what}" for kind, what in outcome.violations[:6]), sep="\n")
    least = shrunk(outcome.number, troubles)
    told = ", ".join(f"{one.kind} after {one.after_seconds:.2f} s" for one in least)
    print(f"    with {len(least)} of {len(troubles)} troubles: {told}")
    only = f" --only {','.join(options.only)}" if options.only else ""
    plant = f" --plant '{options.plant}'" if options.plant else ""
    places = f" --troubles '{','.join(str(one.place) for one in least)}' --trace"
    print(f"    again: python -m tests.simulation --seed {outcome.number}{only}{plant}{places}", flush=True)
    if not options.trace:
        lines = run(outcome.number, least, keeps_trace=True).lines
        end = next((place for place, line in enumerate(lines, 1) if " VIOLATION " in line), len(lines))
        print("    before it fails:", *lines[max(0, end - TRACE_LINES) : end], sep="\n")


if __name__ == "__main__":
    sys.exit(main())
