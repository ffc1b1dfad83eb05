"""One suite over all sinks behind their delivery, as a crawl uses them."""

from __future__ import annotations

import asyncio

from site_spider.contracts.sink import Answer, Verdict
from site_spider.results.batch import BatchLimits
from site_spider.results.delivery import Delivery
from tests.contracts.sinks import SinkCase, case, record
from tests.contracts.trials import page

__all__ = ["case"]


def test_one_poison_result_among_a_thousand(case: SinkCase) -> None:
    """999 are stored, one is rejected in the server's words, and each is answered for once."""

    async def scenario() -> list[tuple[str, Verdict]]:
        verdicts: list[tuple[str, Verdict]] = []
        delivery = Delivery(case.new())
        await delivery.open(300)
        for number in range(1000):
            one = record("poison", case.poison) if number == 500 else page(number)
            delivery.submit(one, lambda verdict, key=one.key: verdicts.append((key, verdict)))  # type: ignore[misc]
        assert await delivery.close(300) == 0
        return verdicts

    verdicts = asyncio.run(scenario())
    refused = {key: verdict for key, verdict in verdicts if verdict.answer is not Answer.ACKNOWLEDGED}
    assert len(verdicts) == 1000
    assert refused.keys() == {"poison"}
    assert case.poison_reason in refused["poison"].reason
    reader = case.new_reader()
    assert {document["response_size"] for document in reader.search(limit=None)} == {*range(1000)} - {500}
    reader.close()


def test_a_lonely_result_is_sent_within_its_age(case: SinkCase) -> None:
    """Nothing else arrives and nothing is closed: it is stored all the same, and not before."""

    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        delivery = Delivery(case.new(), limits=BatchLimits(age_seconds=0.5))
        await delivery.open(300)
        answered: asyncio.Future[Verdict] = loop.create_future()
        began = loop.time()
        delivery.submit(page(1), answered.set_result)
        async with asyncio.timeout(300):
            assert (await answered).answer is Answer.ACKNOWLEDGED
        assert loop.time() - began >= 0.5
        await delivery.close(300)

    asyncio.run(scenario())
    reader = case.new_reader()
    assert reader.get("1") == page(1).document
    reader.close()
