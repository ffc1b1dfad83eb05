"""Cookie jars have bounds, whatever a site sets."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scrapy import Request, Spider
from scrapy.http import Response
from scrapy.utils.test import get_crawler

from site_spider.contracts.seed_log import Partition
from site_spider.engine import cookies
from site_spider.engine.cookies import Jars
from site_spider.engine.scrapy_parts import LeanCookies, SeedCookies
from site_spider.ledger.ledger import SeedInFlight
from site_spider.seed.seed import parse_seed
from tests.growth import CONSTANT, assert_grows
from tests.in_process import engine
from tests.in_process.engine import crawl, page

URL = "http://www.shop.test/a/b"
LINES = {
    "many lines": [f"c{i}=v; Path=/" for i in range(2900)],
    "attributes": ["c=v" + ";a=b" * 1000] * 2900,
    "semicolons": ["c=v" + ";" * 4000] * 2900,
    "a date of blanks": ["c=v; Expires=09 Jun 2031" + " " * 3900 + "x"] * 2900,
    "a date with a zone": ["c=v; Expires=09 Jun 2031 10:18:14 " + "a" * 3900 + "!"] * 2900,
    "a domain of many parts": ["c=v; Domain=" + "a." * 1900 + "test"] * 2900,
    "a path of slashes": ["c=v; Path=" + "/" * 4000] * 2900,
    "quotes": ['c="' + '\\"' * 2000] * 2900,
    "long values": [f"c{i}=" + "v" * 4_000 for i in range(400)],
    "Set-Cookie2": ["c=v"],
}


@pytest.fixture
def middleware() -> LeanCookies:
    crawler = get_crawler(Spider)
    crawler.spider = crawler._create_spider("trial")
    return LeanCookies.from_crawler(crawler)


def answer(middleware: LeanCookies, lines: list[str], url: str = URL, key: Any = 1, header: str = "Set-Cookie") -> None:
    request = Request(url, meta={"cookiejar": key})
    middleware.process_response(request, Response(url, headers={header: lines, "Set-Cookie2": 'a="b"' * 9}))


def sent(middleware: LeanCookies, url: str = URL, key: Any = 1, **keywords: Any) -> list[str]:
    request = Request(url, meta={"cookiejar": key}, **keywords)
    middleware.process_request(request)
    return (request.headers.get("Cookie") or b"").decode().split("; ")


@pytest.mark.parametrize("kind", LINES)
def test_the_cookies_of_an_answer_cost_no_more_than_their_number(kind: str, middleware: LeanCookies) -> None:
    lines, jars = LINES[kind], count()
    assert_grows(lambda n: partial(answer, middleware, lines[: n * len(lines) // 16], key=next(jars)), 4)
    answer(middleware, lines)
    assert len(list(middleware.jars[1])) <= 50


def test_a_cookie_that_pushes_out_another_costs_no_more_beside_those_of_many_domains(middleware: LeanCookies) -> None:
    lines, jars = [f"c{i}=v; Path=/" for i in range(100)], count()

    def prepare(hosts: int) -> Callable[[], None]:
        key = next(jars)
        for host in range(hosts):
            answer(middleware, lines[:50], f"http://h{host}.test/", key)
        answer(middleware, lines[:50], key=key)
        return partial(answer, middleware, lines[50:], key=key)

    assert_grows(prepare, 12, CONSTANT)


def test_a_domain_has_its_last_50_cookies(middleware: LeanCookies) -> None:
    """From page to page; 100 pages left 5,000 of them."""
    for number in range(100):
        answer(middleware, [f"c{number}x{i}=v; Path=/" for i in range(7)])
    assert sent(middleware) == [f"c{n // 7}x{n % 7}=v" for n in range(650, 700)]


def test_a_cookie_that_is_set_again_stays(middleware: LeanCookies) -> None:
    answer(middleware, ["session=1; Path=/"])
    for number in range(100):
        answer(middleware, [f"c{number}=v; Path=/", f"session={number}; Path=/"])
    assert "session=99" in sent(middleware)
    assert len(sent(middleware)) == 50


def test_a_jar_has_3000_cookies_of_all_domains(middleware: LeanCookies) -> None:
    for host in range(70):
        answer(middleware, [f"c{i}=v; Path=/" for i in range(50)], f"http://h{host}.test/")
    assert len(list(middleware.jars[1])) == 3000
    assert sent(middleware, "http://h9.test/") == [""]
    assert len(sent(middleware, "http://h10.test/")) == 50


def test_of_cookies_that_were_pushed_out_no_path_is_left(middleware: LeanCookies) -> None:
    """Each has up to 4 KB, for as long as the jar lives, and each request of the domain looks at all."""
    for number in range(10):
        answer(middleware, [f"c=v; Path=/a/{number}/{i}" for i in range(50)])
        answer(middleware, ["c=v; Path=/"], f"http://h{number}.test/")
    answer(middleware, ["c=v; Path=/; Max-Age=0"], "http://h0.test/")
    jar = middleware.jars[1].jar
    assert len(jar._cookies["www.shop.test"]) == 50
    assert len(jar._cookies) == 10
    jar.clear()
    assert (len(jar._cookies), jar.size_bytes) == (0, 0)


def test_a_cookie_has_4096_bytes_at_most(middleware: LeanCookies) -> None:
    answer(middleware, ["a=" + "v" * 4094, "b=" + "v" * 4095, "c=1; Path=/" + "x" * 4096])
    assert [pair[0] for pair in sent(middleware)] == ["a"]


def test_a_cookie_header_is_cut_between_cookies(middleware: LeanCookies) -> None:
    for path in range(50):
        answer(middleware, [f"c{path}={'v' * 4000}; Path={'/a' if path % 2 else '/a/b'}"])
        answer(middleware, [f"d{path}={'v' * 4000}; Path=/; Domain=shop.test"])
    pairs = sent(middleware)
    assert 60_000 < len("; ".join(pairs)) <= 65_536
    assert {len(pair.partition("=")[2]) for pair in pairs} == {4000}


def test_cookies_that_a_seed_brings_are_not_pushed_out(middleware: LeanCookies) -> None:
    """However many: its message is bounded elsewhere."""
    own = {f"own{i}": "v" for i in range(120)}
    assert len(sent(middleware, cookies=own)) == 120
    answer(middleware, [f"c{i}=v; Path=/" for i in range(2900)])
    assert {f"{name}=v" for name in own} <= set(sent(middleware))


def test_all_jars_are_bounded_in_sum(middleware: LeanCookies, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cookies, "MOST_OF_ALL_BYTES", 1_000_000)
    answer(middleware, ["session=1; Path=/"], "http://good.test/", key="good")
    for seed in range(100):
        answer(middleware, [f"c{i}={'v' * 4000}; Path=/" for i in range(50)], key=seed)
        assert middleware.jars.size_bytes <= 1_000_000
    assert sent(middleware, "http://good.test/", key="good") == ["session=1"]
    for key in list(middleware.jars):
        middleware.jars.pop(key)
    assert middleware.jars.size_bytes == 0


def test_a_late_answer_makes_no_jar_anew(middleware: LeanCookies) -> None:
    """Its seed's partition was lost, and the jar with it: nobody would throw the new one away."""
    entry = SeedInFlight(Partition("seeds", 0), 7, 1)
    answer(middleware, ["a=b; Path=/"], key=entry)
    assert list(middleware.jars) == [entry]
    middleware.jars.pop(entry)
    entry.live = False
    answer(middleware, ["a=b; Path=/"], key=entry)
    assert not middleware.jars
    assert sent(middleware, key=entry, cookies={"own": "1"}) == ["own=1"]
    assert not middleware.jars


@pytest.mark.parametrize(
    ("domain", "url", "is_taken"),
    [
        ("co.uk", "http://www.shop.co.uk/", False),
        ("github.io", "http://me.github.io/", False),
        ("shop.co.uk", "http://www.shop.co.uk/", True),
        ("github.io", "http://github.io/", True),
    ],
)
def test_no_cookie_is_set_for_a_public_suffix(
    domain: str, url: str, is_taken: bool, middleware: LeanCookies, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the list that is installed: none is fetched on the event loop."""

    def never(*arguments: Any, **keywords: Any) -> Any:
        raise AssertionError(arguments)

    monkeypatch.setattr(socket, "getaddrinfo", never)
    answer(middleware, [f"a=b; Path=/; Domain={domain}"], url)
    assert sent(middleware, url) == (["a=b"] if is_taken else [""])


SET = st.builds(
    "{}=v; Path=/{}; Domain={}{}".format,
    *(st.sampled_from("abc"), st.sampled_from(["", "x", "y"]), st.sampled_from(["s.test", "w.s.test"])),
    st.sampled_from(["", "; Max-Age=0", "; Expires=Thu, 01 Jan 1970 00:00:00 GMT"]),
)


@given(st.lists(st.one_of(st.lists(SET, max_size=4), st.none()), max_size=12))
def test_the_books_hold_what_the_jar_holds(steps: list[list[str] | None]) -> None:
    jars = Jars()
    jar = jars["k"]
    jar.cookies.most_of_domain = 4
    for lines in steps:
        if lines is None:
            jar.cookies.halve()
        else:
            request = Request("http://w.s.test/x")
            jar.extract_cookies(Response("http://w.s.test/x", headers={"Set-Cookie": lines}), request)
        held = {(cookie.domain, cookie.path, cookie.name) for cookie in jar}
        assert held == set(jar.cookies._order)
        assert all(paths and all(paths.values()) for paths in jar.jar._cookies.values())
        assert jar.cookies.size_bytes == sum(size for _, size in jar.cookies._order.values())
    jar.clear()
    assert (list(jar), jar.cookies.size_bytes) == ([], 0)


@pytest.mark.parametrize(
    "lines", [["name=naïve; Path=/"], ["city=Пермь; Path=/"], ["a=far; Path=/", "a=near; Path=/a"]]
)
def test_cookies_of_a_request_that_leaves_are_those_that_would_be_sent(
    middleware: LeanCookies, lines: list[str]
) -> None:
    entry = SeedInFlight(Partition("seeds", 0), 7, 1)
    answer(middleware, lines, key=entry)
    crawler: Any = SimpleNamespace(get_downloader_middleware=lambda _kind: middleware)
    said = SeedCookies(crawler).for_request(Request(URL), entry)
    for url in (URL, "http://www.shop.test/", "http://shop.test/a/", "https://www.shop.test/a/b"):
        own = {"cookies": parse_seed(json.dumps({"url": URL, "cookies": said}).encode()).cookies} if url == URL else {}
        assert sent(middleware, url, key=8, **own) == sent(middleware, url, key=entry)


# --- cookies of seeds ------------------------------------------------------------------------------------


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
