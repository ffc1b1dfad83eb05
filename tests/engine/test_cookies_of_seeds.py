"""Cookies belong to one seed, and its own header is sent."""

from __future__ import annotations

from pathlib import Path

from tests.in_process import engine
from tests.in_process.engine import crawl, page


def test_cookies_of_one_seed_do_not_go_out_with_another(tmp_path: Path) -> None:
    """Each seed has a jar of its own, which its links share."""
    engine.ANSWERS["/first"] = lambda r: page(r, "<a href=/second>", Set_Cookie="owner=first")
    engine.ANSWERS["/second"] = lambda r: page(r, (r.headers.get("Cookie") or b"none").decode())
    engine.ANSWERS["/third"] = engine.ANSWERS["/second"]
    seeds = [{"url": f"http://h.test/{path}", "meta": {"url_id": path}} for path in ("first", "third")]
    found = crawl(tmp_path, seeds, CONCURRENT_REQUESTS=1)
    child = next(d for d in found.documents.values() if d.get("seed_url_id") == "first")
    assert child["body"] == "owner=first"
    assert found.documents["third"]["body"] == "none"


def test_a_cookie_header_of_a_seed_is_sent(tmp_path: Path) -> None:
    """Scrapy alone would drop it; the field `cookies` wins where both name a cookie."""
    engine.ANSWERS["/cookie-header"] = lambda r: page(r, (r.headers.get("Cookie") or b"none").decode())
    seed = {
        "url": "http://h.test/cookie-header",
        "headers": {"cookie": "a=1; b=2"},
        "cookies": {"b": "3"},
        "meta": {"url_id": "x"},
    }
    assert crawl(tmp_path, [seed]).documents["x"]["body"] == "a=1; b=3"
