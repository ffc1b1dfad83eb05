"""A short run of `python -m tests.download.fuzz_answers`."""

from __future__ import annotations

import asyncio

import uvloop

from tests.download.fuzz_answers import Pairs, compare


def test_three_readers_agree_on_what_ours_takes_however_it_is_cut() -> None:
    async def main() -> None:
        for seed in range(150):
            compare(seed)
            if seed % 50 == 0:
                await asyncio.sleep(0)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


def test_no_byte_reaches_another_request_on_the_same_connection() -> None:
    async def main() -> int:
        pairs = Pairs()
        for seed in range(90):
            await pairs.exchange(seed)
        pairs.close()
        return pairs.asked_again

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) > 5
