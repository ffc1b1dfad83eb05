"""Entries of sitemaps and feeds, of whole files and of broken ones."""

from __future__ import annotations

import gzip
from datetime import UTC, datetime
from random import randbytes
from xml.sax.saxutils import escape

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from site_spider.engine.background import run_through
from site_spider.page import sitemap
from site_spider.page.decode import kind_of
from site_spider.page.sitemap import ListedPage, Sitemap, parse_lastmod, read_sitemap, sitemaps_of_robots

SOURCE = "https://a.test/sitemap.xml"
NAMESPACES = 'xmlns="http://www.sitemaps.org/schemas/sitemap/0.9"'


def read(body: bytes, media_type: str = "", url: str = SOURCE, since: datetime | None = None) -> Sitemap:
    kind = kind_of(body, media_type)
    assert kind is not None
    return run_through(read_sitemap(body, kind, url, since=since))


def urls(body: bytes, media_type: str = "", url: str = SOURCE) -> list[str]:
    found = read(body, media_type, url)
    assert (found.note, found.refusal) == (None, None)
    return [entry.url for entry in found.entries]


def urlset(*entries: str) -> bytes:
    return f'<?xml version="1.0"?><!-- a --><urlset {NAMESPACES}>{"".join(entries)}</urlset>'.encode()


LATE = '{"items": [{"url": "/1", "text": "%s"}, {"url": "/2"}], "version": "https://jsonfeed.org/version/1"}'
KINDS = {
    "sitemap": urlset("<url><loc> https://a.test/1 </loc></url>", "<url><loc>/2</loc></url>"),
    "gzip": gzip.compress(urlset("<url><loc>https://a.test/1</loc></url><url><loc>/2</loc></url>")),
    "two gzip members": gzip.compress(b"<urlset><url><loc>/1</loc></url>")
    + gzip.compress(b"<url><loc>/2</loc></url></urlset>"),
    "prefix": b'<s:urlset xmlns:s="x"><s:url><s:loc>/1</s:loc></s:url><s:url><s:loc>/2</s:loc></s:url></s:urlset>',
    "undeclared prefix": b"<urlset><url><loc>/1</loc><image:image><image:loc>/i.png</image:loc></image:image>"
    b'<xhtml:link rel="alternate" href="/de"/></url><url><video:video/><loc>/2</loc></url></urlset>',
    "other languages": b"<urlset><url><link rel='alternate' href='/de'/><loc>/1</loc></url>"
    b"<url><link>/en</link><loc>/2</loc></url></urlset>",
    "images beside the page": b"<urlset><url><image:loc>/i</image:loc><loc>/1</loc></url>"
    b"<url><image:loc>/i</image:loc></url><sm:url><image:loc>/i</image:loc><sm:loc>/2</sm:loc></sm:url></urlset>",
    "media beside the page": b"<rss><item><media:link href='/m'/><link>/1</link></item>"
    b"<item><atom:link rel='self' href='/s'/><atom:link href='/2'/></item></rss>",
    "index": b"<sitemapindex><sitemap><loc>/1</loc></sitemap><sitemap><loc>/2</loc></sitemap></sitemapindex>",
    "utf-16": "<?xml version='1.0' encoding='utf-16'?><urlset><url><loc>/1</loc></url>"
    "<url><loc>/2</loc></url></urlset>".encode("utf-16"),
    "rss": b"<rss version='2.0'><channel><link>/</link><item><title>t</title><link>/1</link></item>"
    b"<item><guid>https://a.test/2</guid></item>"
    b"<item><guid isPermaLink='false'>x</guid></item><item><guid>b2d0-7</guid></item></channel></rss>",
    "rss 1.0": b"<rdf:RDF><item><link>/1</link></item><item><link>/2</link></item></rdf:RDF>",
    "latin-1": "<?xml version='1.0' encoding='ISO-8859-1'?><rss><title>é</title><item><link>/1</link></item>"
    "<item><link>/2</link></item></rss>".encode("latin-1"),
    "atom": b"<feed xmlns='http://www.w3.org/2005/Atom' xml:base='https://a.test/'><link href='/'/>"
    b"<entry><link rel='edit' href='/e'/><link href='1'/><source><link href='/s'/></source></entry>"
    b"<entry xml:base='https://a.test/x/'><link rel='alternate' href='../2'/></entry></feed>",
    "json in gzip": gzip.compress(
        b'{"version": "https:\\/\\/jsonfeed.org\\/version\\/1", "items": [{"url": "/1"}, {"url": "/2"}]}'
    ),
    "blank lines first": b"\xef\xbb\xbf\n \r\n<?xml version='1.0'?><urlset><url><loc>/1</loc></url>"
    b"<url><loc>HTTPS://a.test/2</loc></url></urlset>",
    "utf-8 that says to be utf-16": b"<?xml version='1.0' encoding='utf-16'?><urlset><url><loc>/1</loc></url>"
    b"<url><loc>/2</loc></url></urlset>",
    "behind a long comment": b"<?xml version='1.0'?><!--" + b"x" * 20_000 + b"--><urlset><url><loc>/1</loc></url>"
    b"<url><loc>/2</loc></url></urlset>",
    "with a style sheet": b"<?xml version='1.0'?><?xml-stylesheet href='a>b'?><urlset>"
    b"<url><loc>/1</loc></url><url><loc>/2</loc></url></urlset>",
    "utf-16le without a mark": "<?xml version='1.0' encoding='utf-16'?><urlset><url><loc>/1</loc></url>"
    "<url><loc>/2</loc></url></urlset>".encode("utf-16le"),
    "utf-16be without a mark": "\n<urlset><url><loc>/1</loc></url><url><loc>/2</loc></url></urlset>".encode("utf-16be"),
    "text in utf-16": gzip.compress("https://a.test/1\nhttps://a.test/2".encode("utf-16")),
    "json in utf-16": '{"version": "https://jsonfeed.org/version/1", "items": [{"url": "/1"}, {"url": "/2"}]}'.encode(
        "utf-16"
    ),
    "late json in gzip": gzip.compress((LATE % ("x" * 80_000)).encode()),
    "late json in utf-16": (LATE % ("x" * 80_000)).encode("utf-16"),
    "atom with a registered relation": b"<feed><entry><link rel='self' href='/e'/>"
    b"<link rel='http://www.iana.org/assignments/relation/alternate' href='/1'/></entry>"
    b"<entry><link rel='Alternate' href='/2'/></entry></feed>",
    "with a base": b"<urlset><base href='/x/y/'/><url><loc>../../1</loc></url>"
    b"<url xml:base='../z/'><loc>../../2</loc></url></urlset>",
    "text in gzip": gzip.compress(b"HTTPS://a.test/1\nhttps://a.test/2"),
    "text with other ends of lines": gzip.compress(b"https://a.test/1\rhttps://a.test/2\r\n\r"),
    "json of several pieces": b'{"version": "https://jsonfeed.org/version/1.1", "items": [{"content_text": "'
    + b'\\"url\\": {[ \\\\' * 3_000
    + b'", "author": {"url": "/a"}, "url": "\\/1"}, {"url": "/2", "tags": ["url", "/3"]}], "url": "/4"}',
    "json": b'\xef\xbb\xbf {"items": [{"url": "/1"}, 3, {"url": 4}, {"url": "/2"}],'
    b' "version": "https://jsonfeed.org/version/1.1"}',
}


@pytest.mark.parametrize("body", KINDS.values(), ids=KINDS)
def test_each_kind_gives_its_pages(body: bytes) -> None:
    assert [url.lower() for url in urls(body)] == ["https://a.test/1", "https://a.test/2"]


def test_a_list_of_urls_is_one_when_it_says_to_be_text() -> None:
    body = b"\xef\xbb\xbfhttps://a.test/1\r\n\nhttp://a.test/2"
    assert urls(body, "text/plain") == ["https://a.test/1", "http://a.test/2"]
    assert kind_of(body) is None
    assert kind_of(b"see https://a.test/1", "text/plain") is None


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html><urlset></html>",
        b"<!DOCTYPE html><rss>",
        b"<!DOCTYPE rss[<rss>",
        b'{"version": "1"}',
        b"\x1f\x8b\x08broken",
        b"<feeding/>",
    ],
)
def test_other_pages_are_none(body: bytes) -> None:
    assert kind_of(body, "text/html") is None


def test_a_packed_feed_that_breaks_behind_its_beginning_is_one() -> None:
    packed = gzip.compress(b'{"version": "https://jsonfeed.org/version/1"' + randbytes(100_000).hex().encode())
    assert kind_of(packed[:60_000] + b"\xff" * 1_000 + packed[60_000:]) == "json"


def test_what_is_said_of_a_page_is_kept() -> None:
    body = urlset(
        "<url><loc>/1</loc><lastmod>2026-01-02</lastmod><priority>0.5</priority><changefreq>daily</changefreq></url>"
    )
    (entry,) = read(body).entries
    assert entry == ListedPage("https://a.test/1", "2026-01-02", "0.5", "daily")
    assert entry.meta(SOURCE) == {"lastmod": "2026-01-02", "priority": "0.5", "changefreq": "daily", "source": SOURCE}


def test_older_entries_are_left_out() -> None:
    dates = "2026-01-01", "2026-01-03T00:00:00Z", "Sat, 03 Jan 2026 00:00:00 GMT", "2024", "soon", ""
    dates += "2026/01/01", "2026/1/1 12:00", "2026/13/45", "2026-01-01Z", "2026-01-02+14:00"
    body = urlset(*(f"<url><loc>/{n}</loc><lastmod>{date}</lastmod></url>" for n, date in enumerate(dates)))
    found = read(body, since=datetime(2026, 1, 2, tzinfo=UTC))
    assert [entry.url[-1] for entry in found.entries] == ["1", "2", "4", "5", "8", "0"]
    assert parse_lastmod("2026-01-02+14:00") == datetime(2026, 1, 1, 10, tzinfo=UTC)


@pytest.mark.parametrize(
    "dates", ["<pubDate>{}</pubDate><atom:updated>{}</atom:updated>", "<date>{1}</date><date>{0}</date>"]
)
@pytest.mark.parametrize("old", ["Wed, 01 Jan 2020 00:00:00 GMT", "soon"])
def test_the_latest_of_several_dates_counts(dates: str, old: str) -> None:
    body = f"<rss><item><link>/1</link>{dates.format(old, '2026-01-03')}</item></rss>".encode()
    assert [entry.lastmod for entry in read(body, since=datetime(2026, 1, 2, tzinfo=UTC)).entries] == ["2026-01-03"]


@pytest.mark.parametrize(
    "date",
    [
        *("2026-01-02", "20260102", "2026/01/02", "2026/1/2", "02 Jan 2026", "2026-01", "2026", "2026-01-02T12:00Z"),
        *("2026-01-02Z", "2026-01-02+02:00", "2026-01-02-11:00"),
    ],
)
def test_a_date_that_may_be_as_new_as_asked_for_is_followed(date: str) -> None:
    """`7d` is a time of the day: what changed in the rest of that day has no other date."""
    body = urlset(f"<url><loc>/1</loc><lastmod>{date}</lastmod></url>")
    assert read(body, since=datetime(2026, 1, 2, 12, tzinfo=UTC)).entries


def test_sitemaps_of_a_robots_txt_are_read_as_others_read_them() -> None:
    body = b"\xef\xbb\xbfSitemap: /1\rsitemap : https://b.test/2 #m\n Sitemap:\nSitemap: #x\n#Sitemap: /3\nsitemap:a b "
    assert [entry.url for entry in sitemaps_of_robots(body)] == ["/1", "https://b.test/2", "a b"]
    assert sitemaps_of_robots(b"\n" * 512_000 + b"Sitemap: /1") == []


def test_a_fault_ends_the_entries_with_a_note() -> None:
    good = b"<urlset><url><loc>/1</loc></url>"
    for bad in (b"<url></loc>", b"<url><loc></a></loc></url></urlset>", b"\xff", b"", b"<a>" * 100):
        for packed in (good + bad, gzip.compress(good + bad)):
            found = read(packed)
            assert [entry.url for entry in found.entries] == ["https://a.test/1"], bad
            assert found.note
            assert found.note.startswith("sitemap read up to 1 entries: its ")
    found = read(gzip.compress(good * 9_000, mtime=0)[:-20])
    assert found.note
    feed = b'{"version": "https://jsonfeed.org/version/1", "items": [{"url": "/1"}, '
    for bad in (b'{"url": "/2', b'{"url": "/2"]', b"[" * 100, b""):
        found = read(feed + bad)
        assert [entry.url for entry in found.entries] == ["https://a.test/1"], bad
        assert found.note
        assert found.note.startswith("sitemap read up to 1 entries: its JSON ")


MANY = "".join(f"<url><loc>/{n}</loc></url>" for n in range(300))
MENDED = {  # a fault in the second of 302 entries, and what its URL is then
    "ampersand": (b"/?a=1&b=2", "/?a=1&b=2"),
    "ampersand at the end": (b"/?a&", "/?a&"),
    "name without an end": (b"/?a=1&copy=2", "/?a=1&copy=2"),
    "name of HTML": (b"/&eacute;", "/é"),
    "name of nothing": (b"/&nothing;x", "/&nothing;x"),
    "number": (b"/&#233;&#xE9;&#0;&#8;", "/éé\ufffd"),
    "names of XML": (b"/&amp;&lt;&gt;&quot;&apos;&amp;nbsp;x", "/&<>\"'&nbsp;x"),
    "not UTF-8": (b"/\xe9", "/\ufffd"),
    "control character": (b"/\x08\x00a\xef\xbf\xbf", "/a"),
    "less than": (b"/a< b", "/a< b"),
    "section of text": (b"<![CDATA[/?a=1&b=2&amp;x]]>", "/?a=1&b=2&amp;x"),
}


@pytest.mark.parametrize("at", [0, 3_990, *range(4_040, 4_100, 3)])
def test_a_small_fault_is_mended_wherever_pieces_end(at: int) -> None:
    for name, (written, meant) in MENDED.items():
        body = urlset("<url><loc>/0</loc></url>", " " * at, "<url><loc>@</loc></url>", MANY).replace(b"@", written)
        found = urls(body)
        assert (found[1], len(found)) == (f"https://a.test{meant}", 302), name


GAPS = {  # the URL of the second of 302 entries, if it has one
    b"<url><loc>/b<c</loc></url>": None,
    b"<url><loc>/b</url>": "/b",
    b"<url><loc>/b<lastmod>2026</lastmod></url>": "/b",
    b"<url><loc>/b</loc><lastmod>2026</lastmo></url>": "/b",
    b"<url><loc>/b</loc><x y=1></url>": "/b",
    b"<url><loc>/b</loc></url></br>": "/b",
    b"<url <url": None,
}


@pytest.mark.parametrize("at", [0, 4_000, 4_080, 4_090])
def test_behind_any_other_fault_it_is_read_on_with_a_note(at: int) -> None:
    for written, meant in GAPS.items():
        parts = ("<base href='/d/'/>", "<url><loc>/0</loc></url>", " " * at, "@", MANY)
        found = read(urlset(*parts, "<url><loc>9</loc></url>").replace(b"@", written))
        assert len(found.entries) == 302 + (meant is not None), written
        assert found.entries[-1].url == "https://a.test/d/9"
        assert meant is None or found.entries[1].url == f"https://a.test{meant}"
        assert found.note
        assert found.note.startswith("sitemap read with gaps, the first behind ")


RSS_091 = b'<!DOCTYPE rss PUBLIC "-//Netscape Communications//DTD RSS 0.91//EN" "http://h.test/rss-0.91.dtd">'


@pytest.mark.parametrize("doctype", [b"<!DOCTYPE rss>", RSS_091, b"<!DOCTYPE\nrss >"])
@pytest.mark.parametrize("before", [b"", b"<?xml version='1.0'?>\n"])
def test_a_doctype_is_passed_over(doctype: bytes, before: bytes) -> None:
    found = read(before + doctype + b"<rss><item><link>/1&eacute;</link></item></rss>")
    assert [entry.url for entry in found.entries] == ["https://a.test/1é"]


ENTITY = b'<!DOCTYPE urlset [<!ENTITY a "/b"><!ENTITY x SYSTEM "file:///etc/hostname">\n]>'


@pytest.mark.parametrize("hidden", [b"", b"<!-- <![CDATA[ -->"])
def test_entities_are_never_expanded(hidden: bytes) -> None:
    """Also where a section of text only seems to begin, in which ampersands stand for themselves."""
    body = ENTITY + b"<urlset>" + hidden + b"<url><loc>/1&a;&x;z</loc></url><url><loc>/2</loc></url></urlset>"
    found = read(body)
    assert {entry.url for entry in found.entries} <= {"https://a.test/2"}
    assert found.note
    assert found.note.endswith("it has a DOCTYPE with entities of its own, which are not read")
    late = b"<urlset>" + ENTITY + b"<url><loc>&a;</loc></url></urlset>"
    assert "/b" not in str(read(late).entries)


LONG_BASE = b"<urlset xml:base='https://a.test/" + b"x" * 8_000 + b"/'>"
JSON_FEED = b'{"version": "https://jsonfeed.org/version/1", "items": ['


def tags(pattern: bytes, count: int) -> bytes:
    return b"<urlset>" + b"".join(pattern.replace(b"N", b"%020d" % n) for n in range(count))


WORDS = b"<url><loc>/</loc><lastmod>N</lastmod><priority>N</priority></url>"


@pytest.mark.parametrize(
    ("body", "note"),
    [
        (LONG_BASE + b"<url><loc>1</loc></url>" * 1_000, "its URLs and dates take more than"),
        (tags(WORDS, 5_000), "its URLs and dates take more than"),
        (tags(b"<a/>", 30_001), "it has more than 30000 parts"),
        (tags(b"<a b='' c='' d=''/>", 10_000), "it has more than 30000 parts"),
        (b"<urlset><url>" + b"<date>1</date><date>2</date>" * 3_000, "it has more than 30000 parts"),
        (JSON_FEED + b"[]," * 10_500, "it has more than 30000 parts"),
        (b"https://a.test/1\n" * 300 + b"no URL\n" * 30_001, "it has more than 30000 parts"),
        (b"<urlset><a b='" + b"x" * 100_000, "it has a tag of more than 65536 bytes"),
        (tags(b"&", 30_001), "it has more than 30000 parts"),
        (tags(b"< ", 30_001), "it has more than 30000 parts"),
        (tags(b"<![CDATA[]]>", 30_001), "it has more than 30000 parts"),
        (tags(b"<url </", 2_000), "it has more than 30000 parts"),
        (tags(b"<aN/>", 12_000), "it has more than 10000 names"),
        (tags(b"<a bN=''/>", 12_000), "it has more than 10000 names"),
    ],
)
def test_a_small_file_cannot_take_long_or_much_memory(monkeypatch: pytest.MonkeyPatch, body: bytes, note: str) -> None:
    """The parser keeps all names: a file of 50 MB could have made of them a gigabyte."""
    monkeypatch.setattr(sitemap, "_MOST_PARTS", 30_000)
    monkeypatch.setattr(sitemap, "_MOST_URL_BYTES", 1_000_000)
    found = read(gzip.compress(body, 1))
    assert found.note
    assert note in found.note
    assert len(found.entries) < 5_000


def test_no_step_takes_more_than_a_piece() -> None:
    """An attack on a parser that reads all at once is a long turn of the event loop."""
    many = (b"<urlset>" + some * 10_000 for some in (b"<a/>", b"&", b"<url </", b"\0" * 4))
    for body in (JSON_FEED + b"[]," * 10_000, *many):
        kind = kind_of(body)
        assert kind
        assert sum(1 for _ in read_sitemap(body, kind, SOURCE)) >= len(body) // 4_096


@given(
    st.lists(
        st.text(
            st.characters(codec="utf-8", exclude_categories=["Cc", "Cs", "Z"], exclude_characters="#\ufffe\uffff"),
            min_size=1,
        ),
        max_size=20,
    )
)
def test_any_path_is_read_as_it_stands(paths: list[str]) -> None:
    wanted = [f"https://a.test/?q={path}" for path in paths]
    body = urlset(*(f"<url><loc>{escape(url)}</loc></url>" for url in wanted))
    assert [entry.url for entry in read(body).entries] == wanted


@given(st.sampled_from(sorted(KINDS)), st.binary(max_size=50), st.integers(0, 400))
def test_no_bytes_raise(kind: str, noise: bytes, place: int) -> None:
    body = KINDS[kind][:place] + noise + KINDS[kind][place:]
    if (found := kind_of(body)) is not None:
        run_through(read_sitemap(body, found, SOURCE))


ENCODED = '<?xml version="1.0" encoding="{}"?><rss><title>{}</title><item><link>/1?q={}</link></item></rss>'


@pytest.mark.parametrize(
    ("encoding", "word"),
    [
        *(("gb2312", "中文"), ("GBK", "中文"), ("big5", "中文"), ("Shift_JIS", "日本"), ("EUC-KR", "한국")),
        *(("windows-1251", "мир"), ("UTF-8", "é日"), ("iso-8859-1", "é"), ("US-ASCII", "e")),
    ],
)
def test_a_feed_in_any_encoding_of_the_web_is_read(encoding: str, word: str) -> None:
    body = ENCODED.format(encoding, word * 20_000, word).encode(encoding)
    assert urls(body) == [f"https://a.test/1?q={word}"]


def test_the_header_says_what_the_file_does_not() -> None:
    body = "<rss><item><link>/é</link></item></rss>".encode("latin-1")
    read_as = read_sitemap(body, "rss", SOURCE, content_type="text/xml; charset=ISO-8859-1")
    assert [entry.url for entry in run_through(read_as).entries] == ["https://a.test/é"]


@pytest.mark.parametrize("encoding", ["no-such", "utf-7", "base64", "idna", "undefined"])
def test_a_feed_in_an_encoding_of_nobody_is_read_as_utf_8(encoding: str) -> None:
    assert urls(ENCODED.format(encoding, "é", "é").encode()) == ["https://a.test/1?q=é"]


def test_an_escape_without_an_end_ends_the_entries_wherever_pieces_end() -> None:
    head = b"<?xml version='1.0' encoding='iso-2022-jp'?><urlset><url><loc>/1</loc></url>"
    for at in range(8_192 - 10, 8_192 + 1):
        found = read(head.ljust(at) + b"\x1b" + b"$" * 40 + b"</urlset>")
        assert [entry.url for entry in found.entries] == ["https://a.test/1"]


def test_a_piece_of_half_a_character_is_not_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one of a packed file's step may have one byte; a tag that was cut before it was taken for text."""
    monkeypatch.setattr(sitemap, "_PIECE_BYTES", 1)
    assert urls(KINDS["utf-16"]) == ["https://a.test/1", "https://a.test/2"]


def test_an_endless_base_is_none() -> None:
    entry = b"<entry><link href='1'/></entry>"
    body = b"<feed xml:base='https://a.test/" + b"x" * 60_000 + b"/'>" + entry * 500 + b"</feed>"
    assert set(urls(body)) == {"https://a.test/1"}


def test_what_is_said_beside_a_url_is_short() -> None:
    body = urlset(f"<url><loc>/1</loc><lastmod>{'9' * 65}</lastmod><priority>{'x' * 64}</priority></url>")
    (entry,) = read(body).entries
    assert entry.lastmod is None
    assert entry.priority == "x" * 64


@given(st.text())
@example("Sat, 03 Jan 2026 00:00:00 +99999999999")
@example("0001-01-01T00:00:00+14:00")
@example("9999-12-31T23:59:00-14:00")
def test_a_date_is_one_or_none(text: str) -> None:
    at = parse_lastmod(text)
    assert at is None or at.tzinfo
