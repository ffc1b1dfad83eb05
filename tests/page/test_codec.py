"""Text in slices is the text in one go, wherever the slices are cut."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from site_spider.page import decode
from site_spider.page.decode import MAX_FAULTS, SLICE_BYTES, Decoding
from tests.growth import assert_grows

CODECS = {
    "utf-8": "utf-8",
    "utf-16le": "utf-16-le",
    "utf-16be": "utf-16-be",
    "gb18030": "gb18030",
    "big5": "big5hkscs",
    "euc-jp": "euc_jp",
    "euc-kr": "cp949",
    "iso-2022-jp": "iso2022_jp_ext",
    "shift_jis": "cp932",
}
TEXTS = ["中文", "これは①㈱", "한국어", "Où 🎉", "a\n", "€"]
ODD = [
    b"\x1b",
    b"\x1b$B",
    b"\x1b(J",
    b"\x1b$(D",
    b"\x0e",
    b"\x8e",
    b"\x8f",
    b"\xad\xa1",
    b"\x80",
    b"\x81\x30",
]
ODD += [b"\x00\xd8", b"\xd8\x00", b"\x3d\xd8\x00", b"\xff", b"\xe2\x82"]


@pytest.mark.parametrize("encoding", CODECS)
@given(st.data())
def test_slices_give_what_one_call_gives(encoding: str, data: st.DataObject) -> None:
    name = CODECS[encoding]
    sound = st.sampled_from(TEXTS).map(lambda text: text.encode(name, "ignore"))
    parts = data.draw(st.lists(sound | st.sampled_from(ODD) | st.binary(max_size=4), max_size=12))
    size = data.draw(st.integers(17, 24) if encoding == "iso-2022-jp" else st.integers(1, 9))
    body = b"".join(parts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "SLICE_BYTES", size)
        patch.setattr(decode, "_MENDED_SLICE_BYTES", size)
        decoding = Decoding(body, encoding)
        text = "".join(decoding.pieces())
    handler = "site_spider.mend" if encoding in ("gb18030", "euc-jp") else "replace"
    assert text == body.decode(name, handler)
    assert decoding.is_whole


@pytest.mark.parametrize("encoding", [*CODECS, "windows-1252", "x-user-defined"])
@pytest.mark.parametrize("unit", [b"\x00\xd8", b"\xff", b"\x1b", b"\x81\x30\xff", b"\xad\xa1"])
def test_a_slice_of_faults_costs_no_more_than_its_length(encoding: str, unit: bytes) -> None:
    """The event loop waits for one slice. Its text has as many characters as it has bytes, at most."""
    text = unit * (SLICE_BYTES // len(unit))
    assert_grows(lambda part: partial(next, Decoding(text[: part * len(text) // 4], encoding).pieces()), 1)
    assert all(len(piece) <= SLICE_BYTES + 4 for piece in Decoding(text * 20, encoding).pieces())


def test_a_body_that_is_all_faults_is_not_read_to_its_end() -> None:
    decoding = Decoding(b"\xff" * 3 * MAX_FAULTS, "utf-8")
    assert MAX_FAULTS <= len("".join(decoding.pieces())) < MAX_FAULTS + SLICE_BYTES
    assert not decoding.is_whole
