"""Directives for robots, canonical URLs of headers, and hashes of texts."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.page.directives import canonical_of_header, directives, forbids, text_hash
from site_spider.page.text import read_page

URL = "http://a.test/folder/page"


@pytest.mark.parametrize(
    ("written", "said"),
    [
        (["NoIndex, NOFOLLOW", " noindex "], ["noindex", "nofollow"]),
        (["googlebot: noindex, nofollow", "noarchive"], ["noarchive"]),
        (["max-snippet:50, none"], ["max-snippet:50", "none"]),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST"], ["unavailable_after: 25 jun 2010 15:00:00 pst"]),
        (["unavailable_after: Fri, 25-Jun-10 1:00, noindex"], ["unavailable_after: fri", "25-jun-10 1:00", "noindex"]),
        ([",, ,", ""], []),
    ],
)
def test_directives_are_those_for_all_robots(written: list[str], said: list[str]) -> None:
    assert directives(written) == said


def test_none_forbids_both_and_blanks_separate() -> None:
    assert forbids(["none"], "noindex")
    assert forbids(["noindex nofollow"], "nofollow")
    assert not forbids(["nofollower"], "nofollow")


@pytest.mark.parametrize(
    ("header", "canonical"),
    [
        ('<http://b.test/x>; rel="canonical"', "http://b.test/x"),
        ("</x>; rel=next, <y,z>; title=a; REL='canonical'", None),
        ('</x>; rel=next, <y,z>; title="a"; REL="alternate Canonical"', "http://a.test/folder/y,z"),
        *((header, None) for header in ("<javascript:x>; rel=canonical", "rel=canonical", "<<<<>>>>; rel=canonical")),
        *((header, None) for header in ('<y>; title="x;rel=canonical"; rel=next', "<y>; rel=next; rel=canonical")),
        ('<y>; title="a, <x>; rel=canonical \\"; rel=canonical"', None),
        ('<y>; anchor="/other"; rel=canonical', None),
        ('<y>;crossorigin ; Title = "a, b; <c>" ;REL = "next Canonical"', "http://a.test/folder/y"),
        ("<x>; rel=next, <y>;; rel=canonical;type=text/html", "http://a.test/folder/y"),
        ("<y?a&copy>; rel=canonical", "http://a.test/folder/y?a&copy"),
    ],
)
def test_the_canonical_url_of_a_header(header: str, canonical: str | None) -> None:
    assert canonical_of_header([header], URL) == canonical


@given(st.lists(st.text()), st.text())
def test_any_header_is_survived(values: list[str], url: str) -> None:
    assert all(said == said.strip() for said in directives(values))
    found = canonical_of_header([f"<{value}>; rel=canonical" for value in values], url)
    assert found is None or found.startswith(("http://", "https://"))


@given(st.lists(st.text(st.characters(exclude_categories=("Z", "Cc", "Cs")), min_size=1)), st.sampled_from(" \n\t"))
def test_a_hash_is_that_of_the_words(words: list[str], blank: str) -> None:
    assert text_hash(blank.join(words)) == text_hash("  ".join(words))
    assert (text_hash(" ".join(words)) is None) == (not words)


@given(st.text(st.characters(exclude_categories=("Cs",))))
def test_any_page_has_the_fields(text: str) -> None:
    fields = read_page(text, URL, main_only=True)
    assert fields.keys() > read_page(text, None).keys()
    assert "\0" not in (fields["text"] or "") + (fields["title"] or "")


JSON_LD = '<script type="application/ld+json{}">{}</script>'
DATED = JSON_LD.format("; charset=utf-8", '{"datePublished": "2021-01-01"}')


@pytest.mark.parametrize(
    ("markup", "date"),
    [
        ('<meta property="article:published_time" content="2020-01-02T03:04:05+01:00">', "2020-01-02T02:04:05+00:00"),
        (JSON_LD.format("", '{"@graph": [{"datePublished": "2021-05"}]}'), "2021-05-01T00:00:00+00:00"),
        (f"<time itemprop=datePublished datetime=2022-01-01></time>{DATED}", "2021-01-01T00:00:00+00:00"),
        ("<time datetime=2022-01-01>x</time>", "2022-01-01T00:00:00+00:00"),
        *((f"<time datetime={date}>x</time>", None) for date in ("yesterday", "2030-01-01")),
        ("<time datetime=2022-01-01>x</time><time datetime=2021-01-01>x</time>", None),
        ("<time datetime=2022-01-01>x</time><time pubdate datetime=2021-01-01>", "2021-01-01T00:00:00+00:00"),
        ("<time datetime=2022-01-01>x</time><p itemprop='a datePublished'>2021-01-01", "2021-01-01T00:00:00+00:00"),
        (JSON_LD.format("", '{"datePublished": [1]}'), None),
        (JSON_LD.format("", '{"review": [{"datePublished": "2019-01-01"}]}') + DATED, "2021-01-01T00:00:00+00:00"),
        ("<div itemprop=review><b><meta itemprop=datePublished content=2019-01-01></b></div>", None),
        ("<p itemprop=comment><i itemprop=datePublished>2019-01-01</i></p>" + DATED, "2021-01-01T00:00:00+00:00"),
        ("<div itemprop=review><time itemprop=datePublished datetime=2019-01-01>x</time></div>", None),
        (JSON_LD.format("", '{"about": "two\nlines", "datePublished": "2021-05"}'), "2021-05-01T00:00:00+00:00"),
    ],
)
def test_the_date_of_publication(markup: str, date: str | None) -> None:
    assert read_page(markup, URL, now=datetime(2026, 1, 2, tzinfo=UTC))["published_at"] == date


@pytest.mark.parametrize(
    ("markup", "plain", "main"),
    [
        (
            "<nav>Menu</nav><article><p>Ships come in</article><footer>Imprint",
            "Menu Ships come in Imprint",
            "Ships come in",
        ),
        ("<nav>Menu</nav>", "Menu", "Menu"),
    ],
)
def test_the_main_text_is_without_navigation_and_the_whole_where_there_is_none(
    markup: str, plain: str, main: str
) -> None:
    said = [read_page(markup, URL, main_only=main_only)["text"] for main_only in (False, True)]
    assert [" ".join(text.split()) for text in said] == [plain, main]


@pytest.mark.parametrize(
    ("markup", "description"),
    [
        ("<meta name=Description content=' a\n b '><meta property='og:description' content=c>", "a b"),
        ("<meta name=description content=' '><meta property='og:description' content=c>", "c"),
        ("<meta property='og:description' content=c><meta name=description content=a>", "a"),
        ("<meta property='og:description' content=%s>" % ("c" * 3_000), "c" * 2_000),
        ("<meta name=description><p>a", None),
    ],
)
def test_the_description_is_the_pages_own_or_else_that_for_previews(markup: str, description: str | None) -> None:
    assert read_page(markup, URL)["meta_description"] == description


def test_the_canonical_url_is_relative_to_the_base_of_the_page() -> None:
    markup = '<base href="/b/"><link rel="stylesheet" href=s><link rel="Canonical" href="c?x=1&amp;reg#f">'
    assert read_page(markup, URL, main_only=False)["canonical"] == "http://a.test/b/c?x=1&reg"


def test_a_long_text_is_cut_with_a_note() -> None:
    found = read_page("word " * 100_000, None)
    assert len(found["text"]) == 200_000
    assert found["notes"] == ["text: the first 200000 of 499999 characters"]


SPANISH = "Sus más de sesenta millones de artículos en más de trescientos idiomas han sido redactados en conjunto. "
DANISH = "Navnet er sammensat af wiki, en teknologi til at oprette sider i fællesskab, og encyklopædi. "
LONG = {"es": SPANISH * 20, "no": DANISH * 20}  # which read as Portuguese and Danish


@pytest.mark.parametrize(
    ("said", "text", "language"),
    [
        *(("es-MX", LONG["es"], "es"), ("NB", LONG["no"], "nb"), ("de", LONG["es"], "pt"), ("", LONG["es"], "pt")),
        *(("de", SPANISH, "de"), ("", SPANISH, "es"), ("x", "", None)),
    ],
)
def test_the_language_is_as_declared_unless_a_long_text_is_far_from_it(
    said: str, text: str, language: str | None
) -> None:
    assert read_page(f"<html lang='{said}'><p>{text}", URL)["language"] == language
