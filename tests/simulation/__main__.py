"""`python -m tests.simulation`: runs storms by their numbers."""

from __future__ import annotations

import os
import sys

if os.environ.get("PYTHONHASHSEED") != "0":  # sets are walked in one order then, whatever the process
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, "-m", "tests.simulation", *sys.argv[1:]])

from tests.simulation import virtual  # first: it replaces clock and threads

import argparse
import logging
import random
from contextlib import nullcontext
from itertools import count

from tests.simulation.mutants import MUTANTS, planted
from tests.simulation.run import Outcome, run, shrunk
from tests.simulation.troubles import ACTS, GROUPS, Trouble, troubles_of

MUTANT_SECONDS = 60.0  # of CPU time
_entropy = random.SystemRandom()


def main() -> int:
    options = _options()
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger().handlers[:] = [logging.NullHandler()]
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if options.mutants is not None:
        return try_mutants(options.mutants, (options.seed or [1])[0])
    with planted(options.plant) if options.plant else nullcontext():
        return search(options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    add = parser.add_argument
    add("--seed", type=int, nargs="+", metavar="N", help="run these numbers, or --count from N on")
    add("--count", type=int, default=1, metavar="C", help="so many numbers from N on")
    add("--minutes", type=float, metavar="M", help="numbers, by default new ones, for so much CPU time")
    add("--only", default="", metavar="KINDS", help=f"comma list of {', '.join([*GROUPS, *ACTS])}")
    add("--troubles", metavar="PLACES", help="only these of a number's troubles, as a failure prints them")
    add("--mutants", nargs="?", const="", metavar="NAME", help="look for planted faults: all, or these")
    add("--plant", choices=[*MUTANTS], metavar="NAME", help="run with this fault")
    add("--trace", action="store_true", help="print all that happens")
    options = parser.parse_args()
    options.kinds = [kind for kind in options.only.split(",") if kind]
    if unknown := sorted(set(options.kinds) - set(GROUPS) - set(ACTS)):
        parser.error(f"--only: not known: {', '.join(unknown)}")
    return options


def search(options: argparse.Namespace) -> int:
    """1 when a number fails."""
    given = options.seed or [_entropy.randrange(10**9)]
    numbers = given if len(given) > 1 else range(given[0], given[0] + options.count)
    failed, pages, done = 0, 0, 0
    for number in count(given[0]) if options.minutes else numbers:
        if options.minutes and virtual.cpu_seconds() > 60 * options.minutes:
            break
        troubles = _chosen(options, number)
        outcome = run(number, troubles, keeps_trace=options.trace)
        done, pages = done + 1, pages + outcome.pages
        if options.trace:
            print("\n".join(outcome.lines))
        if outcome.violations:
            failed += 1
            report(outcome, troubles, options)
        elif options.count <= 10 and not options.minutes:
            print(outcome, flush=True)
    rate = done / virtual.cpu_seconds()
    print(f"{done} runs from {given[0]} on, {failed} failed, {pages} pages, {rate:.2f} runs a second of CPU")
    return 1 if failed else 0


def _chosen(options: argparse.Namespace, number: int) -> list[Trouble]:
    found = troubles_of(number, options.kinds)
    if options.troubles is None:
        return found
    places = {int(place) for place in options.troubles.split(",") if place}
    return [trouble for trouble in found if trouble.place in places]


def try_mutants(name: str, first: int) -> int:
    """How many are not found."""
    missed = 0
    for mutant in [one for one in MUTANTS if name in one]:
        began, number, found = virtual.cpu_seconds(), first, None
        while found is None and virtual.cpu_seconds() - began < MUTANT_SECONDS:
            with planted(mutant):
                outcome = run(number, troubles_of(number))
            found = outcome.violations[0] if outcome.violations else None
            number += 1
        missed += found is None
        what = f"{found[0]} | {number - 1}" if found else "not found | -"
        print(f"| {mutant} | {what} | {virtual.cpu_seconds() - began:.1f} |", flush=True)
    return missed


def report(outcome: Outcome, troubles: list[Trouble], options: argparse.Namespace) -> None:
    """What failed, and the least that makes it fail."""
    print(outcome)
    for kind, what in outcome.violations[:6]:
        print(f"    {kind}: {what}")
    least = shrunk(outcome.number, troubles)
    told = ", ".join(f"{one.kind} after {one.after_seconds:.2f} s" for one in least)
    print(f"    with {len(least)} of {len(troubles)} troubles: {told}")
    only = f" --only {options.only}" if options.kinds else ""
    plant = f" --plant '{options.plant}'" if options.plant else ""
    places = ",".join(str(one.place) for one in least)
    again = f"--seed {outcome.number}{only}{plant} --troubles '{places}' --trace"
    print(f"    again: python -m tests.simulation {again}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
