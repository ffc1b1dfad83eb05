"""Tables: plain text that fits, and that a terminal only shows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from site_spider.commands.output import Column, render
from site_spider.text import cut

COLUMNS = (Column("ID"), Column("SIZE", right=True), Column("URL", shrinks=True), Column("NOTE", optional=True))
URL = "http://example.com/a/long/path"


def test_a_table_without_a_width_shows_everything() -> None:
    """Columns are as wide as their widest cell, and None is a dash."""
    assert render(COLUMNS, [["a", 7, URL, None], ["bbb", 1234, "x", "note"]]) == [
        "ID   SIZE  URL                             NOTE",
        "a       7  http://example.com/a/long/path  -",
        "bbb  1234  x                               note",
    ]


def test_a_narrow_terminal_cuts_what_may_shrink() -> None:
    """An ellipsis says that something is missing."""
    assert render(COLUMNS, [["a", 7, URL, "note"]], width=36)[1] == "a      7  http://example.com/…  note"


def test_a_narrower_terminal_leaves_optional_columns_out() -> None:
    """What cannot be cut any further makes room by leaving."""
    assert render(COLUMNS, [["a", 7, URL, "note"]], width=24) == ["ID  SIZE  URL", "a      7  http://exampl…"]


@given(st.text(), st.integers(1, 200))
def test_no_cell_makes_a_line_break_or_an_escape_sequence(text: str, width: int) -> None:
    """Whatever the text, there is one printable line a row."""
    lines = render([Column("A", shrinks=True)], [[text]], width)
    assert len(lines) == 2
    assert all(line.isprintable() for line in lines)


def test_what_fits_is_not_cut() -> None:
    """The width itself still fits."""
    assert cut("abcd", 4) == "abcd"
    assert cut("abcde", 4) == "abc…"
