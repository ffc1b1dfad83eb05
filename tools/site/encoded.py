"""Pages in many character encodings, declared in many ways or not at all."""

from __future__ import annotations

from typing import NamedTuple

from tools.site.exchange import Answer, Ask, page
from tools.site.text import html

_GERMAN = (
    "<p>Die größten Städte Österreichs: über Nacht fährt der Zug nach Süden. "
    "„Schöne Grüße“ – für 5 € ließ er die Tür öffnen, und die Vögel sangen früh im März.</p>"
)
_FRENCH = (
    "<p>L’été dernier, nous avons déjeuné près de la forêt ; le garçon était très étonné. "
    "Où êtes-vous allés ? À l’hôtel, bien sûr, où la crème brûlée coûte 7 € — c’est cher.</p>"
)
_CHINESE = "<p>北京是中华人民共和国的首都。春天来了,花园里的花都开了,孩子们在河边唱歌。价格:壹佰元整。</p>"
_TRADITIONAL = "<p>臺北的夏天很熱,我們在圖書館裡讀書。價格是一百元。</p>"
_JAPANESE = "<p>東京の春は美しいです。カタカナとひらがな、漢字が混ざった文章を読みます。①㈱</p>"
_KOREAN = "<p>서울의 봄은 따뜻합니다. 도서관에서 책을 읽고 강가를 걸었습니다.</p>"
_RUSSIAN = "<p>Весной в Москве тепло. Мы читали книги в библиотеке и гуляли у реки.</p>"


class Encoded(NamedTuple):
    """How a page is written and what it says about that."""

    text: str
    codec: str
    content_type: str = "text/html"
    head: str = ""
    bom: bytes = b""
    guessed: bool = False  # nothing is declared: what is read may differ


VARIANTS = {
    "utf-8-header": Encoded(_FRENCH + _JAPANESE, "utf-8", "text/html; charset=utf-8"),
    "utf-8-quoted": Encoded(_RUSSIAN, "utf-8", 'text/html;charset="UTF-8"'),
    "utf-8-nothing": Encoded(_GERMAN + _KOREAN, "utf-8"),
    "utf-8-bom": Encoded(_CHINESE, "utf-8", "text/html; charset=iso-8859-1", bom=b"\xef\xbb\xbf"),
    "gb18030-meta": Encoded(_CHINESE, "gb18030", head='<meta charset="gb18030">'),
    "gb2312-meta": Encoded(
        _CHINESE, "gbk", head='<meta http-equiv="Content-Type" content="text/html; charset=gb2312">'
    ),
    "big5-header": Encoded(_TRADITIONAL, "big5", "text/html; charset=Big5"),
    "shift-jis-header": Encoded(_JAPANESE, "cp932", "text/html; charset=Shift_JIS"),
    "euc-kr-header": Encoded(_KOREAN, "euc-kr", "text/html; charset=EUC-KR"),
    "koi8-r-meta": Encoded(_RUSSIAN, "koi8-r", head='<meta charset="koi8-r">'),
    "windows-1252-header": Encoded(_GERMAN, "cp1252", "text/html; charset=windows-1252"),
    "iso-8859-1-header": Encoded(_FRENCH, "cp1252", "text/html; charset=ISO-8859-1"),
    "windows-1252-nothing": Encoded(_FRENCH * 3, "cp1252", guessed=True),
    "utf-16-bom": Encoded(_JAPANESE + _GERMAN, "utf-16-le", bom=b"\xff\xfe"),
    "utf-16-be-bom": Encoded(_RUSSIAN, "utf-16-be", "text/html; charset=utf-16", bom=b"\xfe\xff"),
}


@page("encoded")
def encoded(ask: Ask) -> Answer:
    """/encoded/gb18030-meta/x."""
    variant = VARIANTS[ask.parts[1]]
    text = html(f"Encoded {ask.target}", variant.text, variant.head)
    body = variant.bom + text.encode(variant.codec)
    lenient = {}
    if variant.guessed:
        lenient = {"body": None, "body_pattern": rf"<h1>Encoded {ask.target}</h1>\n<p>L.{{1,3}}t"}
    return Answer(headers=(("Content-Type", variant.content_type),), body=body, text=text, lenient=lenient)
