"""Pages whose links cost more than their bytes."""

from __future__ import annotations

import gzip
from functools import partial
from pathlib import Path

import pytest

from site_spider.page.sitemap import MOST_ENTRIES
from tests.hostile.attack import crawl
from tests.hostile.raw_site import raw_site, sends, whole


def page(*links: str) -> bytes:
    return "".join(f'<a href="{link}">x</a>' for link in links).encode()


@pytest.mark.nightly
def test_a_page_of_10_000_links_is_enqueued_in_slices(tmp_path: Path) -> None:
    links = page(*(f"/leaf?{number}" for number in range(10_000)))
    with raw_site({"/many": sends(whole(links), closes=False)}) as site:
        report = crawl(tmp_path, [{"url": site.url("/many")}], DEPTH_LIMIT=1)
    report.check()
    assert len(report.documents) == 10_001 + len(report.good)


@pytest.mark.nightly
def test_links_to_many_hosts_that_refuse_keep_within_the_bounds(tmp_path: Path) -> None:
    answers = {}
    for number in range(16):
        links = (f"http://127.1.{number}.{other % 250}:1/{other}" for other in range(500))
        answers[f"/many/{number}"] = sends(whole(page(*links)), closes=False)
    with raw_site(answers) as site:
        seeds = [{"url": site.url(path)} for path in answers]
        report = crawl(tmp_path, seeds, DEPTH_LIMIT=1, SITE_LINK_SCOPE="any")
    report.check()
    assert len(report.documents) == 16 * 501 + len(report.good)


def links_of(*pieces: str, count: int) -> bytes:
    """So many links that differ in their last characters."""
    return page(*(f"{''.join(pieces)}{number}" for number in range(count)))


def pages(thousand: int) -> dict[str, bytes]:
    """Of links, a thousand of which are so many."""
    links = partial(links_of, count=thousand)
    return {
        "international hosts": page(*(f"//ü{number}.test/" for number in range(7 * thousand))),
        "long international hosts": page(
            *(f"//{''.join(chr(0x4E00 + (n * 7 + i) % 20_000) for i in range(250))}/" for n in range(thousand))
        ),
        "long labels": page(*(f"//{'.'.join(chr(0x4E00 + n) * 59 for _ in range(4))}/" for n in range(thousand))),
        "long links": links("/", "a" * 8_000),
        "one link of 8 MB": page("/" + "a" * 8_000_000),
        "dots": links("../" * 1_000),
        "dots of a path": links("/." * 4_000),
        "hosts of dots": links("http://", "." * 253, "/", count=10 * thousand),
        "a base of 1 MB": b"<base href='http://h.test/" + b"a" * 1_000_000 + b"/'>" + links("p", count=10 * thousand),
        "a base of 8 KB": b"<base href='/" + b"a" * 8_000 + b"/'>" + links("p", count=10 * thousand),
        "1,000 bases": b"".join(b"<base href='http://h%d.test/'>" % n for n in range(thousand)) + links("p"),
        "percent signs": links("http://other.test/", "%zz" * 2_600),
        "letters to encode": links("http://other.test/", "ü" * 1_300),
        "data": page("data:," + "a" * 8_000_000),
        "identical links": page(*["http://other.test/"] * (100 * thousand)),
        "parameters": links("http://other.test/?", "&".join(f"{n * 7919 % 1000}=1" for n in range(1_100))),
        "empty parameters": links("http://other.test/?", "&" * 7_900),
        "references": links("http://other.test/?", "&#65;" * 1_600),
        "schemes": links("x" * 8_000, ":"),
        "blanks": links(" " * 8_000),
        "malformed hosts": page(*(f"http://[::{number}]:x/" for number in range(10 * thousand))),
        "other hosts": page(*(f"http://h{number}.test/" for number in range(10 * thousand))),
    }


@pytest.mark.parametrize("thousand", [100, pytest.param(1_000, marks=pytest.mark.nightly)])
def test_pages_of_odd_links_hold_up_nothing(thousand: int, tmp_path: Path) -> None:
    """Nearly all of them lead nowhere, or elsewhere: finding that out is the work."""
    answers = {f"/{number}": sends(whole(body), closes=False) for number, body in enumerate(pages(thousand).values())}
    with raw_site(answers) as site:
        seeds = [{"url": site.url(path)} for path in answers]
        report = crawl(tmp_path, seeds, DEPTH_LIMIT=1, SITE_BODY_MAX_BYTES=1_000)
    report.check()
    assert {report.documents[seed["url"]]["status"] for seed in seeds} == {200}


LISTED = "<lastmod>%064d</lastmod><priority>0.5</priority><changefreq>daily</changefreq>"


@pytest.mark.nightly
def test_sitemaps_of_50_000_entries_are_read_in_turns(tmp_path: Path) -> None:
    """Of which rules leave a hundred."""
    entries = (f"<url><loc>/leaf?{n}</loc>{LISTED % n}</url>" for n in range(MOST_ENTRIES))
    xml = f"<urlset>{''.join(entries)}</urlset>".encode()
    feed = '{"version": "https://jsonfeed.org/version/1", "items": [%s]}'
    json = (feed % ",".join(f'{{"url": "/leaf?{n}"}}' for n in range(MOST_ENTRIES))).encode()
    answers = {"/xml": xml, "/gzip": gzip.compress(xml), "/json": json}
    with raw_site({path: sends(whole(body), closes=False) for path, body in answers.items()}) as site:
        seeds = [{"url": site.url(path)} for path in answers]
        rules = {"SITE_URL_DENY": r"/leaf\?\d\d\d", "DEPTH_LIMIT": 1}
        report = crawl(tmp_path, seeds, DOWNLOAD_TIMEOUT=300, **rules)
    report.check()
    assert len(report.documents) == len(answers) + 100 + len(report.good)
