"""Which blocks of memory a crawl keeps, and which it gives back at once."""

from __future__ import annotations

import subprocess
import sys

import pytest
from scrapy import Request

from site_spider.download import bodies
from site_spider.download.bodies import Bodies

TAKEN_AGAIN = """
import ctypes, resource, sys
from site_spider.download.wire import give_back_large_blocks
give_back_large_blocks(beside_large_bodies=sys.argv[1] == "True")
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for size in map(int, sys.argv[2:]):
    for attempt in range(21):
        block = libc.malloc(size)
        ctypes.memset(block, 1, size)
        libc.free(block)
        if attempt == 0:
            before = faults()
    print((faults() - before) * 4096 > 10 * size)
"""


@pytest.mark.parametrize(
    ("beside_large_bodies", "are_mapped_anew"), [(False, [False, False, True]), (True, [False, True, True])]
)
def test_a_block_of_the_kafka_client_is_mapped_once(beside_large_bodies: bool, are_mapped_anew: list[bool]) -> None:
    """It takes one for each batch that it compresses; larger ones are those of bodies."""
    sizes = ("300000", "3661824", "8000000")
    command = [sys.executable, "-c", TAKEN_AGAIN, str(beside_large_bodies), *sizes]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    assert run.stdout.split() == [str(each) for each in are_mapped_anew]


def test_many_large_bodies_have_memory_given_back_sooner(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(
        bodies, "give_back_large_blocks", lambda *, beside_large_bodies: told.append(beside_large_bodies)
    )
    large = Bodies(256_000_000, lambda: True, lambda _: True, lambda: None)
    for number, count in enumerate([0] * 8 + [1] * 3):
        large.weigh(Request(f"http://h.test/{number}"), 1_000_000)
        assert len(told) == count
    assert told == [True]
