"""What is shown holds no character that a terminal obeys."""

from __future__ import annotations

import json
from functools import partial
from math import inf

from hypothesis import given
from hypothesis import strategies as st

from site_spider.commands.output import Column, render
from site_spider.text import LONGEST_LINE, LONGEST_TEXT, cut, escaped, escaped_json, escaped_lines, for_log, up_to
from tests.growth import CONSTANT, assert_grows

# CSI, OSC, C1, DEL, bidi override and isolate, line and paragraph separator, tag, half a surrogate pair
HOSTILE = "\x1b[31m\x1b]0;title\x07\x9b1m\x7f\x85\u202e\u2066\u2028\u2029\ufeff\U000e0041\ud800\r\0"
texts = st.text(st.characters() | st.sampled_from(HOSTILE))


def test_control_characters_are_shown_as_escapes() -> None:
    """Neither a terminal's own commands nor those in one character (C1) come through."""
    assert escaped("\x1b[31mred\n\x9b1m") == "\\x1b[31mred\\n\\x9b1m"
    assert escaped("\u202ea\ud800") == "\\u202ea\\ud800"
    assert escaped("Café – größer 日本 😀") == "Café – größer 日本 😀"


@given(texts)
def test_one_line_is_printable(text: str) -> None:
    """Whatever the text."""
    assert escaped(text).isprintable()
    assert for_log(text, one_line=True).isprintable()


@given(texts)
def test_lines_keep_line_ends_and_tabs_and_nothing_else(text: str) -> None:
    """For tracebacks and tables in a log."""
    for shown in (escaped_lines(text), for_log(text, one_line=False)):
        assert shown.replace("\n", "").replace("\t", "").isprintable()
        assert shown.count("\n") == text.count("\n")


@given(st.dictionaries(texts, texts | st.lists(texts)))
def test_json_reads_the_same(document: dict[str, object]) -> None:
    """Also beyond the basic plane, where an escape is a pair."""
    shown = escaped_json(json.dumps(document, ensure_ascii=False))
    assert shown.isprintable()
    assert json.loads(shown) == json.loads(json.dumps(document))


def test_what_is_long_is_cut_and_says_so() -> None:
    """A megabyte is cut before each of its characters is looked at."""
    for text in ("x" * 1_000_000, HOSTILE * 50_000, "\n" * 1_000_000, "x\n" * 500_000):
        assert len(for_log(text, one_line=True)) <= LONGEST_LINE
        assert len(for_log(text, one_line=False)) <= 10 * LONGEST_TEXT
        for one_line in (True, False):
            read = partial(for_log, one_line=one_line)
            assert_grows(lambda n, read=read, text=text: partial(read, text[:n]), 200_000, CONSTANT)  # type: ignore[misc]
    assert for_log("x" * 5_000, one_line=True).endswith("... (5000 long)")


# --- durations in sentences -----------------------------------------------------------------------


def test_no_bound_is_not_said() -> None:
    assert f"Waiting{up_to(30)}: x" == "Waiting up to 30 s: x"
    assert f"Waiting{up_to(inf)}: x" == "Waiting: x"


# --- tables ----------------------------------------------------------------------------------------------

COLUMNS = (Column("ID"), Column("SIZE", right=True), Column("URL", shrinks=True), Column("NOTE", optional=True))
URL = "http://example.com/a/long/path"


def test_a_table_is_as_wide_as_it_may_be() -> None:
    """None is a dash, an ellipsis says that something is missing, and what cannot be cut makes room by leaving."""
    assert render(COLUMNS, [["a", 7, URL, None], ["bbb", 1234, "x", "note"]]) == [
        "ID   SIZE  URL                             NOTE",
        "a       7  http://example.com/a/long/path  -",
        "bbb  1234  x                               note",
    ]
    assert render(COLUMNS, [["a", 7, URL, "note"]], width=36)[1] == "a      7  http://example.com/…  note"
    assert render(COLUMNS, [["a", 7, URL, "note"]], width=24) == ["ID  SIZE  URL", "a      7  http://exampl…"]


@given(st.text(), st.integers(1, 200))
def test_no_cell_makes_a_line_break_or_an_escape_sequence(text: str, width: int) -> None:
    """Whatever the text, there is one printable line a row."""
    lines = render([Column("A", shrinks=True)], [[text]], width)
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_what_fits_is_not_cut() -> None:
    assert (cut("abcd", 4), cut("abcde", 4)) == ("abcd", "abc…")
