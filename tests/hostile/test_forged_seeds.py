"""What any producer can write into the seed topic, in the real engine: it harms nobody else."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
from scrapy import Request
from scrapy.http import Response

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.adapters.local.log_file import MESSAGE_LIMIT_BYTES
from site_spider.errors import ConfigError
from site_spider.frontier.spill import TopicPartitions
from site_spider.page.url import url_id
from site_spider.seed.spilled import MOST_HOPS
from site_spider.service.config import ServiceSettings
from tests.frontier.test_spill import messages
from tests.in_process import engine
from tests.in_process.engine import Crawled, crawl, page, settings_for
from tests.in_process.linked_site import HOST, Site, seed, site

__all__ = ["site"]

KEY = "a key that nobody else knows"


def moved(path: str, **said: Any) -> dict[str, Any]:
    return seed(path, meta={"site_moved": said})


def reasons(found: Crawled) -> list[str]:
    return [dict(letter.headers)["error"].decode() for letter in found.dead_letters]


def test_a_forged_message_does_not_widen_which_links_are_followed(tmp_path: Path, site: Site) -> None:
    """It names another site's host as that of its seed; its own links are not followed either."""
    answer = lambda request: page(request, '<a href="http://other.test/x">x</a><a href="/y">y</a>')  # noqa: E731
    engine.ANSWERS["/forged"] = answer
    found = crawl(tmp_path, [moved("forged", anchor_host="other.test")])
    assert found.documents.keys() == {url_id(f"{HOST}/forged")}
    found = crawl(tmp_path / "near", [moved("forged", anchor_host="host.test")])
    assert found.documents.keys() == {url_id(f"{HOST}/{path}") for path in ("forged", "y")}


def test_a_forged_message_marks_no_page_as_done(tmp_path: Path, site: Site) -> None:
    """It says that it began as the victim's page, which a link leads to later."""
    site.has("victim")
    site.has("linking", "victim")
    site.has("forged")
    forged = moved("forged", url=f"{HOST}/victim", redirect_times=1, redirect_urls=[f"{HOST}/victim"])
    found = crawl(tmp_path, [forged])
    assert found.seeds["completed_with_result"] == 1
    both = crawl(tmp_path / "both", [forged, seed("linking")], CONCURRENT_REQUESTS=1)
    assert site.visits["victim"] == 1
    assert both.documents[url_id(f"{HOST}/victim")]["final_url"] == f"{HOST}/victim"


def test_with_a_key_links_go_by_the_topic_and_forged_ones_are_dead_letters(
    tmp_path: Path, site: Site, caplog: pytest.LogCaptureFixture
) -> None:
    """Each link that a process sent on is taken; the key is in no message, log line or statistic."""
    caplog.set_level("DEBUG")
    site.has("root", "a", "b")
    site.has("a", "c")
    forged = moved("forged", anchor_host="host.test")
    found = crawl(tmp_path, [seed("root"), forged], SITE_LINKS_TO="kafka", SITE_SPILL_KEY=f"{KEY}, old {KEY}")
    assert set(site.visits) == {"root", "a"}
    assert {path.rpartition("/")[2] for path in (each["url"] for each in found.documents.values())} >= set("abc")
    (reason,) = reasons(found)
    assert reason.startswith("meta.site_moved: not signed with SITE_SPILL_KEY")
    said = json.dumps([found.stats, messages(tmp_path), found.documents], default=str) + caplog.text + reason
    assert KEY not in said
    assert sum("site_signature" in message.get("meta", {}) for message in messages(tmp_path)) == 3


def test_a_short_key_is_refused_and_not_shown(tmp_path: Path) -> None:
    """Nor does the object of settings show a long one."""
    with pytest.raises(ConfigError) as caught:
        ServiceSettings(settings_for(tmp_path, SITE_SPILL_KEY=f"{KEY},hunter2"))
    assert "SITE_SPILL_KEY" in str(caught.value)
    assert "hunter2" not in str(caught.value)
    assert KEY not in repr(ServiceSettings(settings_for(tmp_path, SITE_SPILL_KEY=KEY)))
    key = os.fsdecode(b"\xe4" * 16)  # as the environment hands any bytes on
    assert ServiceSettings(settings_for(tmp_path, SITE_SPILL_KEY=key)).spill_keys == (b"\xe4" * 16,)


def test_what_was_sent_on_too_often_is_crawled_where_it_is(
    tmp_path: Path, site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two processes that hand a page to and fro stop, each of which takes the host for the other's."""
    monkeypatch.setattr(TopicPartitions, "owns", lambda _self, host, _topic: host != "far.test")
    engine.ANSWERS["/start"] = lambda request: page(request, status=302, Location="http://far.test/end")
    with_hops = {"url": f"{HOST}/start", "redirect_times": 1, "redirect_urls": [f"{HOST}/start"]}
    for hops in (MOST_HOPS - 1, MOST_HOPS):
        folder = tmp_path / str(hops)
        found = crawl(folder, [moved("start", hops=hops, **with_hops)], SITE_HOST_OWNERSHIP=True)
        (document,) = found.documents.values()
        assert (document["status"], document["url"]) == (200, f"{HOST}/start")
        sent = [message.get("site_hops") for message in messages(folder)]
        assert sent == ([None, MOST_HOPS] if hops < MOST_HOPS else [None])


def test_a_host_that_hangs_with_urgent_seeds_holds_nobody_up(tmp_path: Path, site: Site) -> None:
    """Its producer gives each seed a level of its own, before all others."""
    released = asyncio.Event()
    others: list[str] = []

    async def hang(request: Request) -> Response:
        await released.wait()
        return page(request)

    def serve(request: Request) -> Response:
        others.append(request.url)
        if len(others) == 40:
            released.set()
        return page(request)

    hog = [{"url": f"http://hog.test/hog{number}", "priority": 1_000_000 - number} for number in range(300)]
    engine.ANSWERS.update({f"/hog{number}": hang for number in range(300)})
    good = [{"url": f"http://good{number % 10}.test/good{number}"} for number in range(40)]
    engine.ANSWERS.update({f"/good{number}": serve for number in range(40)})
    found = crawl(tmp_path, [*hog, *good], CONCURRENT_REQUESTS=16)
    assert found.seeds["completed_with_result"] == 340


def test_a_message_whose_key_fills_it_is_a_dead_letter(tmp_path: Path, site: Site) -> None:
    """With the headers of a dead letter it is too large for the log; what is cut off, the origin has."""
    log = LocalSeedLog(tmp_path)
    producer = log.producer()
    producer.send("seeds", b"k" * (MESSAGE_LIMIT_BYTES - 50), b"no seed").result(300)
    producer.close()
    found = crawl(tmp_path, [seed("good")])
    (letter,) = found.dead_letters
    assert letter.value == b"no seed"
    assert letter.key is not None
    assert len(letter.key) == 100_000
    assert dict(letter.headers)["truncated_key_from_bytes"] == b"%d" % (MESSAGE_LIMIT_BYTES - 50)
    assert found.seeds["completed_with_result"] == 1
    log.close()
