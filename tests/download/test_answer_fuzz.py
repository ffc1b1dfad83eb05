"""A short run of `python -m tests.download.fuzz_answers`."""

from __future__ import annotations

import asyncio

from tests.download.fuzz_answers import Pairs, compare


async def test_three_readers_agree_on_what_ours_takes_however_it_is_cut() -> None:
    for seed in range(150):
        compare(seed)
        if seed % 50 == 0:
            await asyncio.sleep(0)


async def test_no_byte_reaches_another_request_on_the_same_connection() -> None:
    pairs = Pairs()
    for seed in range(90):
        await pairs.exchange(seed)
    pairs.close()
    assert pairs.asked_again > 5
