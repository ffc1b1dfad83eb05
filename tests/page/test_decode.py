"""Bodies become text as they do in browsers, whatever the server says and sends."""

from __future__ import annotations

import codecs
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st
from webencodings.labels import LABELS

from site_spider.engine.background import run_through as run
from site_spider.page import decode, links
from site_spider.page.decode import (
    MAX_FAULTS,
    SLICE_BYTES,
    BodyLimits,
    Decoding,
    decode_small,
    find_encoding,
    is_html,
    is_text,
    keep_binary,
    keep_text,
    media_type,
    python_codec,
)
from tests.growth import assert_grows


class Decoded(NamedTuple):
    text: str
    encoding: str


def decode_body(body: bytes, content_type: str | None = None) -> Decoded:
    """The text and its encoding, which both ways agree on."""
    encoding, start = run(find_encoding(body, content_type))
    decoding = Decoding(body, encoding, start)
    sliced = Decoded("".join(decoding.pieces()), encoding)
    small = decode_small(body, content_type)
    assert small is None or small == sliced
    text = run(links.read_text(body, content_type, BodyLimits(0), 0))
    assert (text.kept.text, text.encoding) == sliced
    return sliced


CHINESE = "这是一个中文网页，介绍北京的历史与文化，欢迎访问。"
JAPANESE = "これは日本語のページです。今日は天気がいいですね。"
KOREAN = "이것은 한국어 웹 페이지입니다. 오늘은 날씨가 좋습니다."
RUSSIAN = "Это русская страница. Сегодня хорошая погода."
FRENCH = "Où êtes-vous allé cet été ? Garçon, ça coûte 5 € à l’hôtel."
PAGES = [
    ("gb18030", "gb18030", CHINESE),
    ("shift_jis", "cp932", JAPANESE),
    ("euc-jp", "euc_jp", JAPANESE),
    ("euc-kr", "cp949", KOREAN),
    ("windows-874", "cp874", "สำนักงานส่งเสริมอุตสาหกรรม วันนี้อากาศดีมาก"),
    ("windows-1251", "cp1251", RUSSIAN),
    ("windows-1252", "cp1252", FRENCH),
    ("utf-8", "utf-8", CHINESE + RUSSIAN + FRENCH),
]


def page(text: str, head: str = "") -> str:
    return f"<!DOCTYPE html><html><head>{head}<title>{text}</title></head><body><p>{text}</p></body></html>"


@pytest.mark.parametrize("content_type", ["text/html; charset={}", "text/html"], ids=["declared", "detected"])
@pytest.mark.parametrize(("name", "codec", "text"), PAGES)
def test_the_header_names_the_encoding_or_it_is_detected(name: str, codec: str, text: str, content_type: str) -> None:
    assert decode_body(page(text).encode(codec), content_type.format(name)) == (page(text), name)


@pytest.mark.parametrize(("name", "codec", "text"), PAGES)
@pytest.mark.parametrize(
    "declaration",
    [
        '<meta charset="{}">',
        "<META CHARSET={} />",
        '<meta http-equiv="Content-Type" content="text/html; charset={}">',
        "<!-- <meta charset=koi8-r> --><meta name='a' content='charset=big5'><meta charset='{}'>",
        "<meta charset=no-such-thing><meta content='a; charset = \"{}\" x' http-equiv=content-type>",
    ],
)
def test_the_page_names_the_encoding(name: str, codec: str, text: str, declaration: str) -> None:
    markup = page(text, declaration.format(name))
    assert decode_body(markup.encode(codec), "text/html") == (markup, name)


@pytest.mark.parametrize(("name", "codec", "text"), PAGES)
def test_an_xml_declaration_names_the_encoding(name: str, codec: str, text: str) -> None:
    document = f'<?xml version="1.0" encoding="{name}"?><a>{text}</a>'
    assert decode_body(document.encode(codec), "application/xml") == (document, name)


@pytest.mark.parametrize(
    ("label", "name"),
    [
        ("latin-1", "windows-1251"),  # no label of the standard, so the next step has its turn
        ("latin1", "windows-1252"),
        ("ISO-8859-1", "windows-1252"),
        ("us-ascii", "windows-1252"),
        ("gb2312", "gb18030"),
        ("GBK", "gb18030"),
        ("x-sjis", "shift_jis"),
        ("ks_c_5601-1987", "euc-kr"),
        ("utf-16", "utf-16le"),
        ("x-user-defined", "x-user-defined"),
        ("utf-7", "windows-1251"),
        ("iso-2022-kr", "windows-1251"),  # `replacement` in the standard
        ("idna", "windows-1251"),  # codecs of Python are no labels
        ("unicode_escape", "windows-1251"),
        ("hex", "windows-1251"),
    ],
)
def test_labels_mean_what_the_standard_says(label: str, name: str) -> None:
    body = b"<meta charset=windows-1251>text"
    assert decode_body(body, f'text/html; Charset="{label}"').encoding == name


BIG_ENDIAN = f'<?xml version="1.0"?><a>{KOREAN}</a>'
JSON = '{"a": "<meta charset=koi8-r>"}'
READ: dict[str, tuple[bytes, str, str | None, str]] = {  # body, type, text if it is another one, encoding
    "a mark of UTF-8 outranks the header": (codecs.BOM_UTF8 + b"text", "text/html; charset=big5", "text", "utf-8"),
    "a mark of UTF-16": ("\ufefftext".encode("utf-16-le"), "text/html; charset=big5", "text", "utf-16le"),
    "the other mark of UTF-16": ("\ufefftext".encode("utf-16-be"), "text/html; charset=big5", "text", "utf-16be"),
    "UTF-16 in a tag that was read as ASCII": (b"<meta charset=utf-16>", "text/html", None, "utf-8"),
    "the other way": (b"<meta charset=utf-16be>", "text/html", None, "utf-8"),
    "a private encoding in a tag": (b"<meta charset=x-user-defined>", "text/html", None, "windows-1252"),
    "a header that lies": (b"<p>caf\xe9</p>", "text/html; charset=utf-8", "<p>caf\ufffd</p>", "utf-8"),
    "XML in UTF-16 without a mark": (BIG_ENDIAN.encode("utf-16-be"), "text/xml", BIG_ENDIAN, "utf-16be"),
    "HTML in UTF-16 without a mark": (page(KOREAN).encode("utf-16-le"), "text/html", page(KOREAN), "utf-16le"),
    "JSON declares nothing": (JSON.encode(), "application/json", JSON, "utf-8"),
    # characters of the standard's tables that Python's codecs of that name do not know
    "a sign of GBK": (b"5 \x80", "text/plain; charset=gbk", "5 €", "gb18030"),
    "signs of EUC-JP": (b"\xad\xa1\xad\xea", "text/plain; charset=euc-jp", "①㈱", "euc-jp"),
    "and a fault": (b"\xad\xa1\xff!", "text/plain; charset=euc-jp", "①\ufffd!", "euc-jp"),
    "a sign of Shift JIS": (b"\x87\x40", "text/plain; charset=shift_jis", "①", "shift_jis"),
    "a private sign": (b"\xfa", "text/plain; charset=x-user-defined", "\uf7fa", "x-user-defined"),
}


@pytest.mark.parametrize("case", READ)
def test_a_body_is_read_as_browsers_read_it(case: str) -> None:
    body, content_type, text, encoding = READ[case]
    assert decode_body(body, content_type) == (body.decode() if text is None else text, encoding)


def test_single_byte_encodings_have_no_gaps() -> None:
    """All 256 bytes of windows-1252 mean something in the standard, five of them more than in Python."""
    text = decode_body(bytes(range(256)), "text/html; charset=windows-1252").text
    assert "\ufffd" not in text
    assert text[0x80:0x82] == "€\x81"


def test_a_few_broken_characters_do_not_make_a_page_legacy() -> None:
    body = (CHINESE * 3).encode()
    assert decode_body(body[:-1], None).encoding == "utf-8"
    assert decode_body(body[:60] + b"\xff" + body[60:], None).text.count("\ufffd") == 1


@given(st.binary(max_size=300), st.sampled_from(sorted(LABELS)))
def test_decoding_never_fails_and_the_text_can_be_stored(body: bytes, label: str) -> None:
    for content_type in (f"text/html; charset={label}", "text/html", None):
        decode_body(body, content_type).text.encode("utf-8")


@given(st.binary(max_size=200), st.text())
def test_any_header_is_survived(body: bytes, content_type: str) -> None:
    decode_body(body, content_type)
    decode_body(body, "text/html;charset=" + content_type)
    is_text(body, content_type)
    is_html(body, content_type)
    assert media_type(content_type) == media_type(content_type).lower()


@given(st.sampled_from(sorted(set(LABELS.values()))))
def test_every_encoding_has_a_codec_for_queries(name: str) -> None:
    assert "é?中".encode(python_codec(name), "xmlcharrefreplace").isascii() is not None
    assert not python_codec(name).startswith("utf-16")


@pytest.mark.parametrize(
    ("content_type", "expected"),
    [
        ("Text/HTML; charset=utf-8", "text/html"),
        (" application/json ", "application/json"),
        ("text/html, text/html", "text/html"),
        ("html", ""),
        ("text/ht ml", ""),
        ("", ""),
        (None, ""),
    ],
)
def test_the_media_type_is_read_from_the_header(content_type: str | None, expected: str) -> None:
    assert media_type(content_type) == expected


TEXTUAL = (
    *("text/html", "text/css", "application/json", "application/ld+json", "application/rss+xml", "text/csv"),
    *("application/javascript", "image/svg+xml", "application/x-www-form-urlencoded"),
)
BINARY = ("image/png", "audio/mpeg", "video/mp4", "font/woff2", "application/octet-stream", "application/pdf")


@pytest.mark.parametrize("content_type", [*TEXTUAL, *BINARY])
def test_the_type_says_what_is_text_whatever_it_holds(content_type: str) -> None:
    assert is_text(b"\x89PNG\r\n\x1a\n\0\0", content_type) is (content_type in TEXTUAL)
    assert is_text(b"<html>", content_type) is (content_type in TEXTUAL)


@pytest.mark.parametrize("content_type", [None, "", "nonsense", "*/*", "text/plain", "application/x-what"])
def test_bytes_decide_where_the_type_says_little(content_type: str | None) -> None:
    magic = (b"\x89PNG\r\n\x1a\n", b"GIF89a", b"\xff\xd8\xff\xe0", b"%PDF-1.7", b"PK\x03\x04", b"\x1f\x8b")
    assert not any(is_text(start + b"abc", content_type) for start in magic)
    assert not is_text(b"some\0thing", content_type)
    assert is_text(b"", content_type)
    assert is_text("Grüße\tund\r\n\x1b[1mmehr\f".encode("latin-1"), content_type)
    assert is_text("mark".encode("utf-16"), content_type)


def test_a_declared_utf16_may_hold_zeros() -> None:
    """Without a mark, but with a charset, zeros are half of the text."""
    assert is_text("text".encode("utf-16-le"), "text/plain; charset=utf-16le")


def test_links_are_looked_for_in_html_only() -> None:
    assert is_html(b"\0", "text/html; charset=utf-8")
    assert is_html(b"", "application/xhtml+xml")
    assert is_html(b"\xef\xbb\xbf \n<!DocType HTML>", None)
    assert is_html("<!DocType HTML>é".encode("utf-16"), None)
    before = b"<?xml version='1.0'?>\n<!DOCTYPE html PUBLIC 'x' [<!ENTITY a ']>'>] ><!--" + b"x" * 2_000 + b"-->"
    for written in (before + b"\n<html xmlns='x'>", b"\xef\xbb\xbf<html>", "<html>".encode("utf-16-be")):
        assert is_html(written.replace(b"\0<", b"\xfe\xff\0<", 1), "application/xml")
    for other in (b"<rss>", b"<rss><!--<html>-->", before, before + b"<rss><html>", b"<!doctype html [", b""):
        assert not is_html(other, "text/xml")
    assert not is_html(b"<!DOCTYPE html>", "text/plain")
    assert not is_html(b"%PDF-1.4 <html>", None)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "body",
    [
        *(b"\xff" * 5_000_000, b"\x81 " * 2_500_000, b"\xad\xff" * 2_500_000, b"a" * 5_000_000 + b"\xe9"),
        *(b"<meta " * 800_000, b"<!--charset" * 400_000, b"<?xml encoding=" * 300_000),
        *("中文".encode("gb18030") * 1_000_000, b"\xff\xfe" + b"\x00\xd8" * 1_000_000),
    ],
)
def test_no_body_costs_more_than_its_length(body: bytes) -> None:
    def reading(part: int, content_type: str | None) -> Callable[[], object]:
        read = body[: part * len(body) // 16] + body[-1:]
        return lambda: (decode_body(read, content_type), is_text(read, content_type), is_html(read, content_type))

    for content_type in (None, "text/html", "text/html; charset=gbk", "text/html; charset=euc-jp"):
        # 5 MB fit no cache that others use as well: 10.8 was seen
        assert_grows(lambda part, declared=content_type: reading(part, declared), 4, 14.0)  # type: ignore[misc]


# --- Text in slices is the text in one go, wherever the slices are cut

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
ODD = [b"\x1b", b"\x1b$B", b"\x1b(J", b"\x1b$(D", b"\x0e", b"\x8e", b"\x8f", b"\xad\xa1", b"\x80", b"\x81\x30"]
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


def test_escapes_without_an_end_are_survived_wherever_slices_end() -> None:
    """The decoder of ISO-2022-JP keeps eight bytes, and gives up."""
    for at in range(decode.SLICE_BYTES - 60, decode.SLICE_BYTES + 1):
        body = b"a".ljust(at) + b"\x1b$" * 40 + b"b" * decode.SLICE_BYTES
        assert decode_body(body, "text/html; charset=iso-2022-jp").text.endswith("b" * decode.SLICE_BYTES)


def test_a_body_that_is_all_faults_is_not_read_to_its_end() -> None:
    decoding = Decoding(b"\xff" * 3 * MAX_FAULTS, "utf-8")
    assert MAX_FAULTS <= len("".join(decoding.pieces())) < MAX_FAULTS + SLICE_BYTES
    assert not decoding.is_whole


# --- What of a body is kept


@given(st.text(st.characters(exclude_categories=["Cs"])), st.integers(1, 60))
def test_a_kept_text_is_the_longest_beginning_that_fits(text: str, max_bytes: int) -> None:
    kept = keep_text(text, BodyLimits(max_bytes))
    assert kept.text is not None
    assert text.startswith(kept.text)
    assert len(kept.text.encode()) <= max_bytes
    assert kept.truncated == (kept.text != text)
    assert not kept.truncated or len(text[: len(kept.text) + 1].encode()) > max_bytes


@given(st.binary(), st.integers(0, 60))
def test_kept_bytes_are_the_beginning_up_to_the_limit(body: bytes, max_bytes: int) -> None:
    kept = run(keep_binary(body, BodyLimits(max_bytes, keep_binary=True)))
    found = b64decode(kept.base64 or "")
    assert found == (body[:max_bytes] if max_bytes else body)
    assert kept.truncated == (found != body)


def test_half_a_surrogate_pair_does_not_keep_a_text_from_being_cut() -> None:
    """It counts, and becomes, what sinks write for it: a question mark."""
    assert keep_text("a\ud800bc", BodyLimits(3)).text == "a?b"


# --- A body is read in steps, and only as far as it is needed

SIZE = 1_000_000


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=50), st.integers(1, 60), st.integers(0, 60))
def test_a_large_body_keeps_what_a_small_one_keeps(text: str, max_bytes: int, read_chars: int) -> None:
    limits, body = BodyLimits(max_bytes), text.encode()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(decode, "AT_ONCE_BYTES", -1)
        patch.setattr(decode, "SLICE_BYTES", 3)
        patch.setattr(links, "_BLOCK_CHARS", 5)
        found = run(links.read_text(body, "text/html; charset=utf-8", limits, read_chars))
    assert found.kept == keep_text(text, limits)
    assert text.startswith(found.read)
    assert len(found.read) >= min(read_chars, len(text))


def test_links_behind_what_is_kept_are_found() -> None:
    body = b"<p>" + b"x" * SIZE + b"<a href=/behind>"
    found = run(links.read_page(body, "text/html", "http://h.test/", wants_links=True, limits=BodyLimits(10)))
    assert [link for some in found.links for link in some] == ["http://h.test/behind"]
    assert found.kept.text == "<p>xxxxxxx"


def test_what_is_neither_kept_nor_read_is_not_decoded() -> None:
    body = "🎉".encode("utf-16-le") * SIZE
    steps = links.read_text(body, "text/html; charset=utf-16le", BodyLimits(4_000), 0)
    assert run(steps).kept.text == "🎉" * 1_000
    assert sum(1 for _ in links.read_text(body, "text/html; charset=utf-16le", BodyLimits(4_000), 0)) < 200


def test_binary_content_is_encoded_in_steps() -> None:
    body, limits = b"\x89PNG\r\n\x1a\n" + bytes(SIZE), BodyLimits(0, keep_binary=True)
    steps = links.read_page(body, "image/png", "http://h.test/", wants_links=True, limits=limits)
    assert sum(1 for _ in steps) > 10
