"""Whether a process has ended, told from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from site_spider.adapters.local import members
from site_spider.adapters.local.members import has_ended, own_identity
from tests.contracts.seed_logs import wait_until

TELL = """
from site_spider.adapters.local.members import own_identity
print(own_identity(), flush=True)
input()
"""


def test_this_process_has_not_ended() -> None:
    """It knows itself."""
    assert has_ended(own_identity()) is False


def test_a_killed_process_has_ended_even_before_its_parent_noticed() -> None:
    """A zombie does nothing any more."""
    with subprocess.Popen(
        [sys.executable, "-c", TELL], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        identity = child.stdout.readline().strip()
        assert has_ended(identity) is False
        os.kill(child.pid, signal.SIGKILL)
        wait_until(lambda: has_ended(identity))
        assert child.returncode is None
    assert has_ended(identity) is True


def test_a_later_process_with_the_same_number_is_another_one() -> None:
    """The start tick tells them apart."""
    boot, namespace, pid, _ = own_identity().split(" ")
    assert has_ended(f"{boot} {namespace} {pid} 1") is True


def test_a_process_from_before_the_last_boot_has_ended() -> None:
    """Its number means nothing now."""
    _, *rest = own_identity().split(" ")
    assert has_ended(" ".join(["an-earlier-boot", *rest])) is True


def test_a_process_of_another_container_cannot_be_judged() -> None:
    """Its number means something else there."""
    boot, _, pid, start = own_identity().split(" ")
    assert has_ended(f"{boot} pid:[1] {pid} {start}") is None


def test_without_proc_nothing_can_be_judged(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """As on systems that have none."""
    monkeypatch.setattr(members, "_PROC", tmp_path)
    members._boot.cache_clear()
    identity = own_identity()
    assert identity == f"- - {os.getpid()} -"
    assert has_ended(identity) is None
    members._boot.cache_clear()
