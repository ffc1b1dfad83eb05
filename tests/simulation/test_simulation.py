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
NEW_MINUTES = 1  # of CPU


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


def test_no_storm_of_a_fixed_number_loses_or_spoils_anything(simulation: Simulation) -> None:
    """The same every time, until the simulation changes."""
    status, said = simulation.run(f"--seed {' '.join(map(str, FIXED))}")
    assert status == 0, said


@pytest.mark.parametrize("first", [NEW])
def test_no_storm_of_a_new_number_loses_or_spoils_anything(simulation: Simulation, first: int) -> None:
    """Others in each run; the table of what takes longest names the first one."""
    status, said = simulation.run(f"--seed {first} --minutes {NEW_MINUTES}")
    assert status == 0, said


def test_one_number_makes_one_storm_whatever_the_hashes(simulation: Simulation) -> None:
    """Each line has a digest of all that happened, in order."""
    other = Simulation(hash_seed="2")
    told = [one.run("--seed 7 8 9")[1] for one in (simulation, other)]
    other.process.communicate()
    digests = [re.findall(r"^\d+: (\w{16}) ", lines, re.MULTILINE) for lines in told]
    assert len(digests[0]) == 3
    assert digests[0] == digests[1]


def test_a_planted_fault_is_found_and_its_troubles_are_shortened(simulation: Simulation) -> None:
    """What is printed repeats it with the troubles that are left."""
    status, said = simulation.run("--seed 23 --plant 'the first of several sinks is enough'")
    told = re.search(r"with (\d+) of (\d+) troubles.*\n.* -m tests.simulation (.*)", said)
    assert status == 1, said
    assert told is not None, said
    left, of_all, again = told.groups()
    assert int(left) < int(of_all)
    status, said = simulation.run(again)
    assert status == 1
    assert "VIOLATION" in said


def test_each_fault_can_be_planted() -> None:
    code = (
        "from tests.simulation.mutants import MUTANTS; from tests.tasks.world import planted\n"
        "for mutant in MUTANTS.values():\n    with planted(mutant):\n        pass"
    )
    ran = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
