"""Storms by fixed numbers and by new ones, in one process that forks for each: it replaces the clock."""

from __future__ import annotations

import os
import random
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FIXED = range(1, 61)  # some 90 s of CPU
NEW = random.Random(os.environ.get("PYTEST_XDIST_TESTRUNUID")).randrange(10**9)  # of this run and its workers


class Simulation:
    """`python -m tests.simulation`, started once for many lines of arguments."""

    def __init__(self, hash_seed: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.simulation", "--serve"],
            cwd=ROOT, env={**os.environ, "PYTHONHASHSEED": hash_seed}, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, arguments: str) -> tuple[int, str]:
        """The status, and what it prints: the numbers that fail, and how each is repeated."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(arguments, file=self.process.stdin, flush=True)
        said = []
        for line in self.process.stdout:
            if line.startswith("status "):
                return int(line.split()[1]), "".join(said)
            said.append(line)
        pytest.fail("".join(said))


@pytest.fixture(scope="module")
def simulation() -> Iterator[Simulation]:
    made = Simulation(hash_seed="1")
    yield made
    made.process.communicate()


def test_no_storm_of_a_fixed_number_loses_or_spoils_anything_or_depends_on_hashes(simulation: Simulation) -> None:
    """It is the same until the simulation changes: each line has a digest of all that happened, in order."""
    other, digests = Simulation(hash_seed="2"), []
    for one, numbers in (simulation, FIXED), (other, FIXED[:10]):
        status, said = one.run(f"--seed {' '.join(map(str, numbers))}")
        assert status == 0, said
        digests.append(re.findall(r"^\d+: (\w{16}) ", said, re.MULTILINE))
    other.process.communicate()
    assert len(digests[1]) == 10
    assert digests[0][:10] == digests[1]


@pytest.mark.parametrize("first", [NEW])
def test_no_storm_of_a_new_number_loses_or_spoils_anything(simulation: Simulation, first: int) -> None:
    """Others in each run; the table of what takes longest names the first one."""
    status, said = simulation.run(f"--seed {first} --minutes 1")
    assert status == 0, said


def test_a_planted_fault_is_found_and_its_troubles_are_shortened(simulation: Simulation) -> None:
    """What is printed repeats it with the troubles that are left; its trace is shown until it fails."""
    status, said = simulation.run("--seed 23 --only sinks --plant 'the first of several sinks is enough'")
    again = r".* -m tests.simulation (.* --only sinks .*)\n.*before it fails:\n(?s:(.*)\n)1 runs"
    told = re.search(rf"with (\d+) of (\d+) troubles: (.*)\n{again}", said)
    assert status == 1, said
    assert told is not None, said
    left, of_all, kinds, again, end = told.groups()
    assert 0 < int(left) < int(of_all)
    assert all(kind.startswith("sink_") for kind in kinds.split(", "))
    assert " VIOLATION " in end.splitlines()[-1]
    status, said = simulation.run(again)
    assert status == 1
    assert end in said


def test_each_fault_can_be_planted() -> None:
    code = (
        "from tests.simulation.mutants import MUTANTS; from tests.tasks.world import planted\n"
        "for mutant in MUTANTS.values():\n    with planted(mutant):\n        pass"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
