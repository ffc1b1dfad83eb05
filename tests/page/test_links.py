"""The links of a page, also of pages that were made to hurt."""

from functools import partial
from itertools import chain
from urllib.parse import urlsplit

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from site_spider.page.links import MAX_LINKS, SLICE_CHARS, SLICE_LINKS, LinkBase, _find, link_slices, trimmed
from site_spider.page.url import MAX_URL_BYTES, check_url
from tests.growth import CONSTANT, assert_grows

BASE = "http://example.com/dir/page?q=1"


def urls(markup: str, base: str = BASE, **options: object) -> list[str]:
    return [*chain.from_iterable(link_slices(markup, base, **options))]  # type: ignore[arg-type]


NOWHERE = [
    "/" + "x" * MAX_URL_BYTES, "a:b", "", "  ", "#top", "mailto:a@b.c", "JavaScript:void(0)",
    " java\nscript:void(0)", "tel:1", "data:text/html,x", "about:blank", "ftp://other.test/", "http://",
    "http://[::1/", "http://user:pass@other.test/", "http://a..b/", "http://a b/", "http://x:port/",
    "http://x:99999/",
]  # fmt: skip


@pytest.mark.parametrize(
    ("href", "url"),
    [
        ("/x", "http://example.com/x"),
        ("x", "http://example.com/dir/x"),
        ("../x", "http://example.com/x"),
        ("../../../x/./y/..", "http://example.com/x/"),
        ("%2E%2e/x", "http://example.com/x"),
        ("?a=b", "http://example.com/dir/page?a=b"),
        ("//other.test/x", "http://other.test/x"),
        ("https://other.test", "https://other.test/"),
        ("HTTPS://Other.TEST/X", "https://other.test/X"),
        ("http:x", "http://example.com/dir/x"),
        ("https:other.test/x", "https://other.test/x"),
        (r"http:\\other.test\x", "http://other.test/x"),
        ("http:///other.test/x", "http://other.test/x"),
        ("https://other.test?a", "https://other.test/?a"),
        ("https://other.test:8080/?u=http://x/#f", "https://other.test:8080/?u=http://x/"),
        ("  /a\n b\t/c ", "http://example.com/a%20b/c"),
        ("/é?é", "http://example.com/%C3%A9?%C3%A9"),
        ("/a%20b%zz", "http://example.com/a%20b%zz"),
        ("/x?a=1&amp;b=2&copy=3&lt;", "http://example.com/x?a=1&b=2&copy=3%3C"),
        ("/&#x41;&#66;&eacute;", "http://example.com/AB%C3%A9"),
        ("http://bücher.test/", "http://xn--bcher-kva.test/"),
        ("http://faß.test/", "http://xn--fa-hia.test/"),
        ("http://[::1]:80/x", "http://[::1]:80/x"),
        ("http://other.test:/x", "http://other.test/x"),
        ("/x#fragment", "http://example.com/x"),
        *((nowhere, None) for nowhere in NOWHERE),
    ],
)
def test_a_link_leads_where_browsers_go(href: str, url: str | None) -> None:
    markup = f'<a href="{href}">1</a><a href=/next>2</a>'
    assert urls(markup) == ([url] if url else []) + ["http://example.com/next"]


@pytest.mark.parametrize(
    "markup",
    [
        "<A HREF=/x>",
        "<a\nhref = '/x' >",
        "<a/href=/x>",
        '<a title="a > b <a href=/no>" href="/x" href="/no">',
        "<area href=/x>",
        "<frame src=/x><iframe src=/x><a href=/no></iframe>",
        "<a name=top><a href><a href=''><a href=/x>",
        "<p title='<a href=/no>'><a href=/x>",
        '<p title="> <a href=/no>"><a href=/x>',
        "<p a' b=c\"d><a href=/x>",
        "<!-- <a href=/no> --><a href=/x>",
        "<!--><a href=/x><!-- -->",
        "<!---><a href=/x>",
        "<!-- --!><a href=/x>",
        '<!doctype html PUBLIC "-//W3C//DTD"><?php <a href=/no> ?><a href=/x>',
        "<script>if (a<b) '<a href=/no>'</script ><a href=/x>",
        "<SCRIPT src=a></script><style>a<b{}</STYLE><textarea><a href=/no></textarea><a href=/x>",
        "<svg><title/><a href=/x>",
        "<noscript><a href=/x></noscript>",
        "<title>a</titles><a href=/no></title><a href=/x>",
        "1 < 2 <3 <<a href=/x> </ a> </> <!> <a",
        "<a href=/x></a href='>'>",
        "<a href=/x><plaintext><a href=/no>",
        "<a href=/x><!-- <a href=/no>",
        "<a href=/x><a href='/no>",
        "<abbr href=/no><article href=/no><link href=/no><a:b href=/no><a href=/x>",
        "\0<a href=/x>\0",
    ],
)
def test_tags_are_told_apart_as_browsers_do(markup: str) -> None:
    assert urls(markup) == ["http://example.com/x"]


def test_links_keep_their_order_and_come_once() -> None:
    markup = "<a href=/b><a href=/a><a href=/b#x><a href=http://example.com/a><a href=' /b'><a href=/c>"
    assert urls(markup) == [f"http://example.com/{name}" for name in "bac"]


def test_the_first_base_holds_for_all_links() -> None:
    assert urls("<a href=x><base target=_top><base href=/b/?c><base href=/no/>") == ["http://example.com/b/x"]
    assert urls("<base href=javascript:1><a href=x>") == ["http://example.com/dir/x"]
    assert urls("<base href='http://['><a href=x>") == ["http://example.com/dir/x"]
    assert urls("<base href=//cdn.test/d/e><a href=x>") == ["http://cdn.test/d/x"]


def test_nofollow_is_respected_unless_told_otherwise() -> None:
    markup = "<a rel='noopener NoFollow' href=/a><a rel=nofollows href=/b><a rel=nofollow href=/b>"
    assert urls(markup) == ["http://example.com/b"]
    assert urls(markup, follow_nofollow=True) == ["http://example.com/a", "http://example.com/b"]


@pytest.mark.parametrize(
    "content", ["nofollow", "noindex, NOFOLLOW", "none", "noindex,nofollow", "noindex&#44;&nbsp;nofollow"]
)
def test_a_robots_tag_speaks_for_the_page(content: str) -> None:
    markup = f'<a href=/a><META name=Robots content="{content}"><a href=/b>'
    assert urls(markup) == []
    assert len(urls(markup, follow_nofollow=True)) == 2
    assert len(urls("<meta name=robots content=noindex><meta name=other content=nofollow>" + markup[:11])) == 1


def test_queries_are_written_in_the_encoding_of_the_page() -> None:
    markup = '<a href="/д?д=中#x">'
    assert urls(markup, encoding="windows-1251") == ["http://example.com/%D0%B4?%E4=%26%2320013%3B"]
    assert urls(markup, encoding="utf-16le") == ["http://example.com/%D0%B4?%D0%B4=%E4%B8%AD"]
    assert urls(markup, encoding="no-such-thing") == urls(markup)
    assert urls("<a href='?q=中'>", encoding="gb18030")[0].endswith("?q=%D6%D0")
    assert urls("<a href='?q=一'>", encoding="big5")[0].endswith("?q=%A4@")


def test_links_beyond_the_limit_are_left_out() -> None:
    markup = "".join(f"<a href=/{i // 2}>" for i in range(2 * MAX_LINKS + 20))
    assert urls(markup) == [f"http://example.com/{i}" for i in range(MAX_LINKS)]


def test_many_links_to_one_international_host_are_all_found() -> None:
    """Only hosts that are met for the first time weigh more in the limits."""
    markup = "".join(f"<a href='http://пример.test/стр/{i}'>" for i in range(3_000))
    assert len(urls(markup)) == 3_000


def test_a_page_is_where_it_was_fetched_however_long_its_url_is() -> None:
    """A seed's URL of 8 kB can be three times as long when it is percent-encoded."""
    long = "%D0%B4" * 4_000
    assert urls("<a href=/x><a href=y>", base=f"http://h.test/a/b?{long}") == ["http://h.test/x", "http://h.test/a/y"]
    assert urls("<a href=/x><a href=y>", base=f"http://h.test/{long}/b") == ["http://h.test/x"]  # the other is too long
    assert LinkBase.parse(f"http://h.test/{'д' * 4_000}", "utf-8").origin == "http://h.test"


def test_links_of_a_page_with_a_very_long_path_take_no_longer_than_others() -> None:
    """Each was joined to 24 kB and brought into form: slices took 0.06 s, and all of them 2 s."""

    def base(size: int) -> str:
        return f"http://h.test/{'%D0%B4/' * size}b"

    markup = "".join(f"<a href='y{number}/../é'><a href='?é{number}'>" for number in range(5_000))
    assert urls(markup + "<a href=/é>", base=base(3_500)) == []  # beyond the ten thousandth
    assert urls("<a href=/é>" + markup, base=base(3_500)) == ["http://h.test/%C3%A9"]
    assert_grows(lambda size: partial(urls, markup[:20_000], base=base(size)), 875, CONSTANT)


def test_a_link_leads_up_from_a_path_that_is_too_long() -> None:
    """What it leads to is no longer than others."""
    base = f"http://h.test/a/{'b' * 9_000}/c/d"
    markup = "<a href=../../e><a href=../../../../é><a href=../é><a href=../../><a href=../..>"
    assert urls(markup, base=base) == ["http://h.test/a/e", "http://h.test/%C3%A9", "http://h.test/a/"]


def test_a_url_has_no_references_of_html() -> None:
    """Nor has a base, once those of its attribute are resolved."""
    assert urls("<a href=y>", base="http://h.test/a&amp;b/c") == ["http://h.test/a&amp;b/y"]
    assert urls("<base href='/a&amp;amp;b/'><a href=y>") == ["http://example.com/a&amp;b/y"]


def test_a_useless_page_url_still_lets_absolute_links_through() -> None:
    assert urls("<a href=/x><a href=//a.test/><a href=http://b.test/>", base="file:///x") == ["http://b.test/"]


WORDS = """
    <!-- --> <script> </script> <title > < </ <! ' " = / // \\ .. ? # & http: https://x.test xn-- [ @ : % %2e
    &amp; &#xD800; &#99999999999999999999; nofollow é 中 1 a
"""
TAGS = ["<a ", "<a href=", "<area href='", '<base href="', "<iframe src=", "<meta name=robots content="]
BLANKS = [" ", "\n", "\0", "\ud800", "\u2028", "\x0b", "\x85"]
FRAGMENTS = st.sampled_from([*WORDS.split(), *TAGS, *BLANKS])


@given(st.lists(FRAGMENTS | st.text(max_size=3)).map("".join), FRAGMENTS | st.just(BASE), st.booleans())
@example("<a href='&#" + "1" * 8000 + ";'>", BASE, True)
@example("<a href='http://\u2100/'><a href='http://x\ud800/'><a href='?\ud800'>", BASE, True)
def test_anything_is_survived_and_urls_are_sound(markup: str, base: str, follow_nofollow: bool) -> None:
    for encoding in ("utf-8", "gb18030", "iso-2022-jp"):
        found = urls(markup, base, follow_nofollow=follow_nofollow, encoding=encoding)
        assert len(found) == len(set(found))
        for url in found:
            parts = urlsplit(url)
            assert parts.scheme in ("http", "https")
            assert parts.hostname
            assert parts.path.startswith("/")
            assert "#" not in url
            assert url.isascii()
            assert url.isprintable()
            assert check_url(url) == url


@given(st.text("ab./?=&%+,:;@!$*()-_~2eE", min_size=1, max_size=20), st.sampled_from([BASE, "https://x.test:1/a/b/"]))
@example("http://a.b:80/c", BASE)
@example("../a", "https://x.test:1/")
@example("..//a", BASE)
@example("../http://a/b", BASE)
@example("../../a", BASE)
@example("../?a", BASE)
def test_the_short_way_of_joining_gives_what_the_long_way_gives(href: str, base: str) -> None:
    page = LinkBase.parse(base, "utf-8")
    short = page._join_plain(href)
    assert short is None or short == page._join_any(href)


@given(
    st.lists(FRAGMENTS | st.text("ab./?=&%:#;\\\\", max_size=3)).map("".join),
    st.sampled_from([BASE, "http://example.com/dir/other", "http://example.com/dir/?x", "http://example.com/dir"]),
    st.sampled_from(["utf-8", "gb18030"]),
)
@example("&quest;a", BASE, "utf-8")
@example("http:?a", BASE, "utf-8")
@example("HTTPS:", "https://example.com/dir/page", "utf-8")
def test_what_is_kept_of_a_link_holds_on_every_page_of_its_folder(href: str, base: str, codec: str) -> None:
    """Links are joined once a folder."""
    page = LinkBase.parse(base, codec)
    kept = _find(page.origin, page.folder, codec, href)
    assert kept is None or kept == (trimmed(href), page.join(trimmed(href)))


# --- Pages that were made to hurt those who look for links

BOMBS = {  # made when they are needed: 150 MB in each worker
    "nested elements": lambda: "<div>" * 200_000,
    "50,000 attributes in a tag": lambda: "<a " + " ".join(f"a{i}=1" for i in range(50_000)) + " href=/no>",
    "5,000 attributes in each tag": lambda: ("<a " + " ".join(f"a{i}=1" for i in range(5_000)) + " href=/no>") * 100,
    "100 attributes in each tag": lambda: ("<a " + "a=1 " * 99 + "href=/x>") * 12_000,
    "attributes without values": lambda: ("<a " + "a " * 8_000 + "href=/x>") * 300,
    "formatting tags": lambda: ("<b><i><u><font size=1>" * 100 + "<p>") * 20,
    "unclosed links": lambda: "<a href=x>" * 500_000,
    "100,000 links": lambda: "".join(f'<a href="/page/{i}.html">x</a>' for i in range(100_000)),
    "malformed links": lambda: "".join(f'<a href="http://[{i}">' for i in range(200_000)),
    "links to encode": lambda: "".join(f'<a href="{i} é?ü">' for i in range(200_000)),
    "long links to encode": lambda: "".join(f'<a href="{i}{"é " * 3_900}">' for i in range(640)),
    "international hosts": lambda: "".join(f'<a href="http://{"é." * 100}{i}/">' for i in range(20_000)),
    "long hosts": lambda: "".join(f'<a href="http://{"é" * 2_000}{i}/">' for i in range(2_500)),
    "references in links": lambda: "".join(f'<a href="{i}{"&amp;" * 1_600}">' for i in range(600)),
    "dots in links": lambda: "".join(f'<a href="{i}{"/a/.." * 1_300}">' for i in range(600)),
    "a long base": lambda: (
        f'<base href="http://x.test/{"a" * 8_000}/">' + "".join(f"<a href={i}>" for i in range(100_000))
    ),
    "bases": lambda: "<base href=/x>" * 100_000,
    "less-than signs": lambda: "<" * 5_000_000,
    "comment starts": lambda: "<!--" * 1_250_000,
    "dashes": lambda: "<!--" + "-" * 5_000_000,
    "ampersands": lambda: "&amp" * 1_250_000,
    "ampersands in a link": lambda: '<a href="' + "&amp" * 1_250_000 + '">',
    "an unclosed quote": lambda: '<a href="' + "x" * 5_000_000,
    "unclosed quotes": lambda: "<a href='\"" * 500_000,
    "text in one element": lambda: "<p>" + "x" * 10_000_000,
    "text in one tag": lambda: "<p " + "x" * 10_000_000 + ">",
    "equals signs": lambda: "<a " + '=""' * 1_600_000 + ">",
    "blanks": lambda: "<a href" + " " * 5_000_000 + ">",
    "blanks between signs": lambda: "<a " + ("= " + " " * 1_000) * 5_000,
    "quotes out of place": lambda: '<b ">' * 1_000_000,
    "hidden tags": lambda: '<b a="<">' * 550_000,
    "short tags": lambda: "<b>" * 1_700_000,
    "scripts": lambda: "<script></script>" * 300_000,
    "script ends": lambda: "<script>" + "</script" * 600_000,
    "declarations": lambda: "<![CDATA[" * 500_000,
    "frames": lambda: "<iframe src=x></iframe>" * 200_000,
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", BOMBS)
def test_no_page_costs_more_than_its_length(name: str) -> None:
    bomb = BOMBS[name]()
    longest = min(len(bomb), max(len(bomb) // 4, 500_000))
    parts = {n: bomb[: n * longest // 4] + bomb[-20:] for n in (1, 4)}
    assert_grows(lambda n: partial(urls, parts[n]), 1)


def test_links_behind_a_bomb_are_found() -> None:
    for name in ("nested elements", "50,000 attributes in a tag", "formatting tags", "equals signs"):
        assert urls(BOMBS[name]()[:4_900_000] + "><a href=/behind>")[-1:] == ["http://example.com/behind"]


@pytest.mark.parametrize("name", BOMBS)
def test_no_slice_holds_many_or_long_links(name: str) -> None:
    for some in link_slices(BOMBS[name]()[:300_000], BASE):
        assert len(some) <= SLICE_LINKS
        assert sum(map(len, some[:-1])) <= SLICE_CHARS


def test_slices_together_are_the_links_of_the_page() -> None:
    markup = "".join(f"<a href=/{number % 3_000}>" for number in range(MAX_LINKS))
    slices = list(link_slices(markup, BASE))
    assert len(slices) > 3_000 / SLICE_LINKS
    assert [url for some in slices for url in some] == [f"http://example.com/{n}" for n in range(3_000)]
