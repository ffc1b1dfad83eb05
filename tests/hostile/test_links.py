"""Pages, files of texts, sitemaps and rules that cost more than their bytes, or are to be misread; and the archive."""

from __future__ import annotations

import gzip
import re
import time
from argparse import Namespace
from functools import partial
from pathlib import Path

import pytest
from warcio.checker import Checker

from site_spider.errors import ConfigError
from site_spider.page.sitemap import MOST_ENTRIES
from site_spider.sources.url_rules import UrlRulesFile
from tests.hostile.attack import crawl
from tests.hostile.raw_site import raw_site, sends, whole


def page(*links: str) -> bytes:
    return "".join(f'<a href="{link}">x</a>' for link in links).encode()


@pytest.mark.nightly
def test_a_page_of_10_000_links_is_enqueued_in_slices(tmp_path: Path) -> None:
    letters = str.maketrans("0123456789", "ghijklmnop")  # of one pattern they would be a trap
    links = page(*(f"/{number}".translate(letters) for number in range(10_000)))
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


# --- files made to cost much, or to be misread: of texts, sitemaps and rules, and for the archive --------


ENTITIES = b"".join(b'<!ENTITY b%d "%s">' % (n + 1, b"&b%d;" % n * 10) for n in range(9))
LD = b'<title>x</title><script type="application/ld+json">'
STATE = b'<script>var state = {"x": "1"}</script>'
FEED = b'{"version": "https://jsonfeed.org/version/1", "items": ['
ATOM = b"<feed xml:base='/no/'><entry><link href='1'/></entry><entry "
SOURCE = """
match: {hosts: [127.0.0.1], urls: [/source-]}
items: [{fields: {name: {jsonld: "[0].name"}, state: {script: "state.x", required: true}}}]
"""
BODIES = {  # and what their result says: part of a note, or of the reason of a failure
    "nested": (b"<div>" * 200_000 + b"x", ""),
    "attributes": (
        b"<meta name=robots content=noindex><p " + b" ".join(b"a%d=1" % n for n in range(100_000)) + b">x",
        "this page takes more than ",
    ),
    "controls": (b"<title>a\0b\1</title><p>\0\0x" + b"\0\1\x1f" * 1_000 + b"\ty", ""),
    "broken": (b"<title>\xff\xfe\xed\xa0\x80</title><p>\xc3(", ""),
    "title": (b"<title>" + b"t" * 3_000_000, ""),
    "entities": (b"<p>" + b"&amp;&#0;&#x110000;&CounterClockwiseContourIntegral;&" * 70_000, "the first 200000 of"),
    "dates": (b'<time datetime="9999-12-31T23:59:59-14:00">x</time>' + LD + b"[" * 100_000 + b"</script>", ""),
    "json-ld": (LD + b'[{"@type": "Article", "datePublished": "2026"}' + b',{"a":[{}]}' * 300_000 + b"]</script>", ""),
    "canonical": (b"<link rel=canonical href='http://[::1'><base href='//'>x", ""),
    "links": (b"".join(b"<a href=#%d>x</a>" % n for n in range(5_000)), ""),
    "blanks": (gzip.compress(b"<urlset><url><loc>/a</loc></url>" + b" " * 60_000_000), "more than 52428800 bytes"),
    "tags": (gzip.compress(b"<urlset>" + b"<url/>" * 2_100_000), "more than 2000000 parts"),
    "deep": (gzip.compress(b"<urlset>" + b"<a>" * 1_000_000), "nested deeper than 64"),
    "entries": (gzip.compress(b"<urlset>" + b"<url><loc>/no</loc></url>" * 50_001), "up to 50000 entries: it has more"),
    "cut": (gzip.compress(b"<urlset><url><loc>/last</loc></url>" + bytes(range(256)) * 100)[:-20], "gzip is broken"),
    "members": (gzip.compress(b"<urlset>") + gzip.compress(b"") * 100_000, "more than 1000 gzip members"),
    "feed-deep": (
        gzip.compress(FEED + b'{"url": "/no"},' + b"[" * 1_000_000),
        "up to 1 entries: its JSON is nested deeper",
    ),
    "feed-signs": (gzip.compress(FEED + b'{"url": "/no"},' + b"," * 2_100_000), "more than 2000000 parts"),
    "feed-endless": (FEED + b'{"url": "/no"},{"url": "' + b"\\u0041" * 500_000, "up to 1 entries: its JSON ends early"),
    "feed-broken": (FEED + b'{"url": "\\ud800"},{"url": "/no"}}]', "up to 1 entries: its JSON is broken"),
    "rss-deep": (gzip.compress(b"<rss><item><link>/no</link></item>" + b"<item>" * 500_000), "nested deeper than 64"),
    "rss-gaps": (gzip.compress(b"<rss>" + b"<item><link>/no</link></x>" * 200_000), "up to 50000 entries: it has more"),
    "rss-cdata": (
        b"<rss><item><link>/no</link></item><item><link><![CDATA[" + b"<a>&b;" * 200_000,
        "up to 1 entries: ",
    ),
    "atom-bases": (ATOM + b"xml:base='%b'><a xml:base='%b'>" % (b"a/" * 4_000, b"b/" * 4_000), "up to 1 entries: "),
    "atom-tag": (ATOM + b" ".join(b"a%d=''" % n for n in range(50_000)), "a tag of more than 65536 bytes"),
    "atom-names": (ATOM + b">" + b"".join(b"<a%d/>" % n for n in range(11_000)), "more than 10000 names"),
    "text-blanks": (
        gzip.compress(b"http://no.test/\n" + b"\n" * 2_100_000),
        "up to 1 entries: it has more than 2000000",
    ),
    "text-endless": (
        gzip.compress(b"http://no.test/\nhttp://no.test/" + b"a" * 60_000_000),
        "more than 52428800 bytes",
    ),
    "robots.txt": (
        b"Sitemap: /named\n" + b"Sitemap: /no\n" * 999 + b"Sitemap: /beyond\n" + b"\rsitemap  " * 99_999,
        "the first 200000 of",
    ),
    "source-deep": (STATE + LD + b'{"name": ' * 100_000, ""),
    "source-long": (b"<script>" + b"/" * 2_000_001 + b"</script>" + STATE, "state is missing"),
    "laughs": (b"<!DOCTYPE u [%s]><urlset><url><loc>/&b9;</loc></url></urlset>" % ENTITIES, "entities of its own"),
}
HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Type: text/plain\r\nX: "
HEADS = {
    "return": (HEAD + b"a\rWARC/1.1\rb\r\n\r\nx", ""),
    "fold": (HEAD + b"a\r\n WARC/1.1\r\n\r\nx", ""),
    "nul": (HEAD + b"\0\xff\r\n\r\nx", ""),
    "long": (HEAD + b"a" * 1_000_000 + b"\r\n\r\nx", "longer than 65536 bytes"),
    "canonical-far": (HEAD + b"a\r\nLink: " + b"<a>;" * 10_000 + b"</no>;rel=canonical\r\n\r\nx", ""),
    "canonical-quoted": (HEAD + b"a\r\nLink: </no>" + b';a="\\";rel=canonical;b="' * 300 + b"\r\n\r\nx", ""),
    "canonical-last": (HEAD + b"a\r\n" + b"Link: <a>;a=a\r\n" * 999 + b"Link: </no>;rel=canonical\r\n\r\nx", ""),
    "robots-words": (HEAD + b"a\r\nX-Robots-Tag: " + b"a," * 30_000 + b"noindex\r\n\r\nx", ""),
    "robots-lines": (
        HEAD + b"a" + b"\r\nX-Robots-Tag: noindex, %d" * 1_000 % (*range(1_000),) + b"\r\n\r\nx",
        "not kept",
    ),
}


def test_pages_sitemaps_and_heads_have_a_result_that_says_what_is_wrong(tmp_path: Path) -> None:
    """And an archive that is sound. Seeds that would break a line of it are dead letters."""
    told = BODIES | HEADS
    answers = {name: sends(whole(body), closes=False) for name, (body, _) in BODIES.items()}
    answers |= {name: sends(answer) for name, (answer, _) in HEADS.items()}
    with raw_site({f"/{name}": answer for name, answer in answers.items()}) as site:
        seeds = [{"url": site.url(f"/{name}")} for name in told]
        bad = [{"url": site.url("/\0")}, {"url": site.url("/"), "meta": {"url_id": "a\r\nWARC/1.1"}}]
        rules = {"SITE_URL_DENY": "/no", "SITE_NOINDEX": "drop_body", "SITE_SITEMAPS": "robots"}
        rules |= {"SITE_TEXT": "plain", "SITE_SOURCES_DIR": str(tmp_path / "sources")}
        (tmp_path / "sources").mkdir()
        (tmp_path / "sources" / "odd.yaml").write_text(SOURCE)
        report = crawl(tmp_path, [*seeds, *bad], SITE_SINKS="local,warc", **rules)
    report.check()
    found = {url.rpartition("/")[2]: document for url, document in report.documents.items() if url not in report.good}
    assert found.keys() == {*told, "last", "named"}
    texts = {name: found[name]["description"] or found[name]["page_notes"] or "" for name in told}
    odd = {name: texts[name] for name, (_, said) in told.items() if (said or "?") not in (texts[name] or "?")}
    assert odd == {}
    assert report.dead_letters == len(bad)
    said = {name: document["robots_meta"] for name, document in found.items() if document["robots_meta"]}
    assert said.pop("robots-lines")[:18] == "noindex, 0, 1, 2, "
    assert said == {"attributes": "noindex", "robots-words": "a"}  # the last word is beyond what is read of a line
    assert [name for name, document in found.items() if document["canonical"]] == ["canonical-last"]
    assert {found[name]["body"] for name in ("attributes", "robots-lines")} == {None}
    assert (len(found["title"]["title"]), found["links"]["links_out"]) == (1_000, 5_000)
    assert found["controls"]["text"].split() == ["x", "y"]  # each of them takes six bytes in JSON
    assert Checker(Namespace(inputs=[*map(str, tmp_path.rglob("*.warc.gz"))], verbose=False)).process_all() == 0


NEXT = (f"b{n}: &b{n} [{','.join([f'*b{n - 1}'] * 10)}]\n" for n in range(1, 7))
RULES: dict[str, tuple[str | bytes, str]] = {
    "explodes": ("b0: &b0 [x]\n" + "".join(NEXT), "1:10: has more than 20000 values"),
    "names itself": ("x: &a [*a]", "1:1: is nested too deeply"),
    "deep": ("h: {deny: " + "[" * 1_000 + "]" * 1_000 + "}", "1:1: is nested too deeply"),
    "many": ("h:\n deny: [" + "a," * 100_000 + "]", "2:40003: has more than 20000 values"),
    "not RE2": ("h:\n deny:\n - x\n - (?<=a)b", "2:2: h.deny.patterns: RE2 does not take the pattern"),
    "binary": (b"h: {}\n\n\xc3\xa4: \xff\n", "3:4: is no YAML"),
    "controls": ("ü: {}\n\nä: \1\n", "3:4: is no YAML"),
    "large": ("x" * 300_000, " is larger than 262144 bytes"),
    "empty": ("", "1:1: must be a mapping"),
}


@pytest.mark.parametrize("name", RULES)
def test_a_rules_file_is_refused_soon_with_its_line(tmp_path: Path, name: str) -> None:
    text, said = RULES[name]
    (tmp_path / "rules.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    began = time.process_time()
    with pytest.raises(ConfigError, match=re.escape(f"rules.yaml:{said}")):
        UrlRulesFile.open({"SITE_URL_RULES": str(tmp_path / "rules.yaml")})
    assert time.process_time() - began < 30  # most of them take 0.1, and "many" 2
