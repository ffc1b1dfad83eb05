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

from tests.simulation.run import Outcome, run, shrunk
from tests.simulation.troubles import ACTS, GROUPS, troubles_of

MUTANT_SECONDS = 60.0  # of CPU time
_entropy = random.SystemRandom()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, metavar="N", help="run this number (the first of --count)")
    parser.add_argument("--count", type=int, default=1, metavar="C", help="so many numbers from N on")
    parser.add_argument(
        "--minutes", type=float, metavar="M", help="random numbers for so many minutes of CPU time"
    )
    parser.add_argument(
        "--only", default="", metavar="KINDS", help=f"comma list of {', '.join([*GROUPS, *ACTS])}"
    )
    parser.add_argument(
        "--mutants", nargs="?", const="", metavar="NAME", help="plant faults: all, or those of this name"
    )
    parser.add_argument("--trace", action="store_true", help="print all that happens")
    options = parser.parse_args()
    kinds = [kind for kind in options.only.split(",") if kind]
    if unknown := sorted(set(kinds) - set(GROUPS) - set(ACTS)):
        parser.error(f"--only: not known: {', '.join(unknown)}")
    logging.getLogger().setLevel(logging.WARNING)
    logging.getLogger().handlers[:] = [logging.NullHandler()]
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    if options.mutants is not None:
        sys.exit(try_mutants(options.mutants, options.seed or 1))
    first = options.seed if options.seed is not None else _entropy.randrange(10**9)
    until = virtual.cpu_seconds() + 60 * options.minutes if options.minutes else None
    failed, pages, done, number = 0, 0, 0, first
    while (virtual.cpu_seconds() < until) if until else (done < options.count):
        outcome = run(number, troubles_of(number, kinds), keeps_trace=options.trace)
        done, pages = done + 1, pages + outcome.pages
        if options.trace:
            print("\n".join(outcome.lines))
        if outcome.violations:
            failed += 1
            report(outcome, kinds)
        elif options.count <= 10 and not until:
            print(said(outcome))
        number += 1
    cpu = virtual.cpu_seconds()
    print(
        f"{done} runs from {first} on, {failed} failed, {pages} pages, {done / cpu:.2f} runs a second of CPU"
    )
    sys.exit(1 if failed else 0)


def try_mutants(name: str, first: int) -> int:
    """How many are not found."""
    from tests.simulation.mutants import MUTANTS, planted

    missed = 0
    for mutant in [one for one in MUTANTS if name in one]:
        began, number, found = virtual.cpu_seconds(), first, None
        while found is None and virtual.cpu_seconds() - began < MUTANT_SECONDS:
            with planted(mutant):
                outcome = run(number, troubles_of(number))
            found = outcome.violations[0] if outcome.violations else None
            number += 1
        seconds = virtual.cpu_seconds() - began
        missed += found is None
        what = f"{found[0]}, in run {number - 1}" if found else "not found"
        print(f"| {mutant} | {what} | {seconds:.1f} |", flush=True)
    return missed


def said(outcome: Outcome) -> str:
    return (
        f"{outcome.number}: {outcome.digest} {outcome.pages} pages, {outcome.steps} steps, "
        f"{outcome.virtual_seconds:.0f} virtual seconds in {outcome.cpu_seconds:.2f} s of CPU"
    )


def report(outcome: Outcome, kinds: list[str]) -> None:
    """What failed, and the least that makes it fail."""
    print(said(outcome))
    for kind, what in outcome.violations[:6]:
        print(f"    {kind}: {what}")
    least = shrunk(outcome.number, troubles_of(outcome.number, kinds))
    print(
        "    with these troubles alone: "
        + ", ".join(f"{one.kind} after {one.after_seconds:.2f} s" for one in least)
    )
    only = f" --only {','.join(kinds)}" if kinds else ""
    print(f"    again: python -m tests.simulation --seed {outcome.number}{only} --trace", flush=True)


if __name__ == "__main__":
    main()
