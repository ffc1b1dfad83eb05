"""The lines of a file of seeds, however long."""

from __future__ import annotations

import io

import pytest

from site_spider.commands.seed import seed_lines
from site_spider.errors import SeedError
from site_spider.seed.fields import MAX_MESSAGE_BYTES


def test_blank_lines_and_comments_are_skipped_but_counted() -> None:
    """A line keeps its number, whatever ends it and whether a byte order mark opens the file."""
    lines = list(seed_lines(io.BytesIO(b"\xef\xbb\xbfhttp://a/\r\n\n  \t\n# no\n  # no\nhttp://b/")))
    assert [(line.number, line.text()) for line in lines] == [(1, "http://a/"), (6, "http://b/")]


def test_a_comment_after_a_byte_order_mark_is_skipped() -> None:
    """The mark does not hide it."""
    assert list(seed_lines(io.BytesIO(b"\xef\xbb\xbf# no\n"))) == []


def test_the_sizes_add_up_to_the_file() -> None:
    """What was skipped counts with the next line, so that a progress bar comes to its end."""
    raw = b"# comment\n\nhttp://a/\nhttp://b/\n"
    assert sum(line.size_bytes for line in seed_lines(io.BytesIO(raw))) == len(raw)


def test_a_line_that_is_not_utf_8_says_so() -> None:
    """The reason names the byte."""
    [line] = seed_lines(io.BytesIO(b"http://a/\xff\n"))
    with pytest.raises(SeedError, match="not UTF-8 at byte 10"):
        line.text()


def test_a_line_longer_than_any_seed_is_never_held_as_a_whole() -> None:
    """It is refused, and the next one follows; no read asks for more than the limit."""
    asked: list[int] = []

    class Stream(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            asked.append(size or 0)
            return super().readline(size)

    raw = b"x" * (3 * MAX_MESSAGE_BYTES) + b"\nhttp://b/\n"
    first, second = seed_lines(Stream(raw))
    with pytest.raises(SeedError, match="longer than"):
        first.text()
    assert (second.number, second.text()) == (2, "http://b/")
    assert first.size_bytes + second.size_bytes == len(raw)
    assert max(asked) <= MAX_MESSAGE_BYTES + 1


@pytest.mark.parametrize("ending", [b"", b"\n"])
def test_a_line_of_just_the_limit_is_whole(ending: bytes) -> None:
    """The limit itself is not too long to be read."""
    [line] = seed_lines(io.BytesIO(b"x" * MAX_MESSAGE_BYTES + ending))
    assert len(line.text()) == MAX_MESSAGE_BYTES
