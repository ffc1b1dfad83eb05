"""The pages: pure functions that each answer for the paths that begin with one word."""

from __future__ import annotations

import gzip
import json
import random
import re
import zlib
from collections.abc import Callable, Set
from functools import lru_cache
from typing import Any, NamedTuple

import brotli

from tools.site.exchange import PAGES, Answer, Ask, Fault, Framing, Lines, Page, host_name, page

_WORDS = (  # one string: easier to read than a list of 36
    "river stone morning market paper window garden letter number season engine island "
    "measure travel colour water silver thread bridge village story copper signal harbour "
    "winter orchard kettle lantern meadow compass ladder pocket timber violet basket candle"
)


def _paragraph(rng: random.Random) -> str:
    words = rng.choices(_WORDS.split(), k=rng.randint(50, 80))
    return f"<p>{' '.join(words).capitalize()}.</p>"


_RNG = random.Random(20)
_PARAGRAPHS = tuple(_paragraph(_RNG) for _ in range(97))


def number(word: str) -> int:
    return zlib.crc32(word.encode())


def paragraphs(word: str, count: int) -> str:
    first = number(word)
    return "\n".join(_PARAGRAPHS[(first + 31 * index) % 97] for index in range(count))


def html(title: str, content: str, head: str = "") -> str:
    return (
        f"<!DOCTYPE html>\n<html>\n<head>{head}<title>{title}</title></head>\n"
        f"<body>\n<h1>{title}</h1>\n{content}\n</body>\n</html>\n"
    )


def ordinary(word: str) -> str:
    """A document of 2 to 10 KB that names the word."""
    return html(f"Page {word}", paragraphs(word, 5 + number(word) % 15))


HTML: Lines = (("Content-Type", "text/html; charset=utf-8"),)
PLAIN: Lines = (("Content-Type", "text/plain; charset=utf-8"),)

TYPES = {
    "json": "application/json",
    "plain": "text/plain",
    "xml": "application/xml",
    "xhtml": "application/xhtml+xml; charset=utf-8",
    "css": "text/css",
    "javascript": "application/javascript",
}
EVERY_BYTE = bytes(range(256)) * 8
PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x10\x00\x00\x00\x10\x08\x06\x00\x00\x00"


def of_text(text: str, headers: Lines = HTML, status: int = 200, **more: Any) -> Answer:
    """An ordinary answer of UTF-8 text, but for what else is said of it."""
    return Answer(**{"status": status, "headers": headers, "body": text.encode(), "text": text, **more})


@page("typed")
def typed(ask: Ask) -> Answer:
    """Text of a type that is not HTML: /typed/json/1."""
    name = ask.parts[1]
    content = {
        "json": json.dumps({"page": ask.target, "words": paragraphs(ask.target, 2)}),
        "xml": f"<?xml version='1.0'?><page><name>{ask.target}</name></page>",
        "xhtml": ordinary(ask.target),
    }.get(name, f"/* {ask.target} */ {paragraphs(ask.target, 3)}")
    return of_text(content, (("Content-Type", TYPES[name]),))


@page("binary")
def binary(ask: Ask) -> Answer:
    """Not text: /binary/png/1, /binary/bytes/1."""
    if ask.parts[1] == "png":
        tail = random.Random(number(ask.target)).randbytes(1500)
        return Answer(headers=(("Content-Type", "image/png"),), body=PNG + tail, text=None)
    return Answer(headers=(("Content-Type", "application/octet-stream"),), body=EVERY_BYTE, text=None)


@page("echo")
def echo(ask: Ask) -> Answer:
    """Tells what came: method, body, and the header lines whose name begins with X-."""
    custom = {name: values for name, values in sorted(ask.headers.items()) if name.startswith("x-")}
    told = {"method": ask.method, "body_hex": ask.body.hex(), "headers": custom}
    return of_text(json.dumps(told), (("Content-Type", "application/json"),))


def _of_word(**more: Any) -> Page:
    """An ordinary page, sent in a special way."""
    return lambda ask: of_text(ordinary(ask.target), **more)


def _large(ask: Ask) -> Answer:
    block = paragraphs(ask.target, 97)
    return of_text(html(f"Large {ask.identity}", "\n".join([block] * (3_000_000 // len(block) + 1))))


def _cut_off(ask: Ask) -> Answer:
    text = ordinary(ask.target)
    kept, closes = text[: len(text) // 2], ask.parts[1] == "close"
    return of_text(kept, body=text.encode(), size=len(kept), declared_length=len(kept), close=closes)


def _to(status: int, location: str, **more: Any) -> Answer:
    text = f'<p>Moved to <a href="{location}">here</a>.</p>'
    return of_text(text, (*HTML, ("Location", location)), status, **more)


_HINTS = b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>; rel=preload\r\n\r\n"
_REPEATED = (
    *(("X-Part", "one"), ("Set-Cookie", "a=1; Path=/repeated/"), ("X-Part", "two, three")),
    *(("Set-Cookie", "b=2; Path=/repeated/; HttpOnly"), ("x-part", "four")),
)
PAGES.update(dict.fromkeys(("page", "landed", "leaf", "disallowed", "outside", "never"), _of_word()))
PAGES |= {
    # Everything may be fetched but /disallowed/. The third host asks for a Crawl-delay.
    "robots.txt": lambda ask: of_text(
        f"User-agent: *\nDisallow: /disallowed/\n{'Crawl-delay: 0.5' * (ask.host == host_name(2))}\n", PLAIN
    ),
    "empty": lambda ask: of_text(""),
    "large": _large,  # 3 MB
    # no Content-Type: /untyped/html/1, /untyped/binary/1
    "untyped": lambda ask: (
        of_text(ordinary(ask.target), ()) if ask.parts[1] == "html" else Answer(body=PNG + EVERY_BYTE, text=None)
    ),
    "chunked": _of_word(framing=Framing.CHUNKED),
    "until-close": _of_word(framing=Framing.CLOSE, close=True, http_version="1.0"),
    "early-hints": _of_word(prelude=_HINTS),
    "repeated": _of_word(headers=(*HTML, *_REPEATED)),
    "slow": lambda ask: of_text(ordinary(ask.target), delay_seconds=int(ask.parts[1]) / 1000),  # milliseconds
    "status": lambda ask: _status(ask, int(ask.parts[1])),  # always this one
    # Content-Length is less than what comes: /cut-off/keep/x, /cut-off/close/x (says Connection: close)
    "cut-off": _cut_off,
    # /countdown/N/x: N hops inside the host, then a page
    "countdown": lambda ask: (
        _to(302, f"/countdown/{left - 1}/{ask.identity}")
        if (left := int(ask.parts[1]))
        else of_text(ordinary(ask.target))
    ),
    # /loop/a/x and /loop/b/x point at each other, /loop/self/x at itself
    "loop": lambda ask: _to(302, f"/loop/{ {'a': 'b', 'b': 'a', 'self': 'self'}[ask.parts[1]] }/{ask.identity}"),
    # a redirect status without Location is a final answer: /nowhere/302/x
    "nowhere": lambda ask: of_text("<p>Moved, but where?</p>", HTML, int(ask.parts[1])),
    "to-echo": lambda ask: _to(int(ask.parts[1]), f"/echo/{ask.identity}"),
}


def _status(ask: Ask, code: int) -> Answer:
    if code in (204, 304):  # no body
        return Answer(status=code)
    return of_text(f"<p>Status {code} for {ask.target}</p>", HTML, code)


ODD_LINES: dict[str, Lines] = {
    "names": (("X-!#$%&'*+-.^_`|~9", "token characters"), ("x-lower-case", "yes"), ("X-UPPER", "yes")),
    "values": (("X-Empty", ""), ("X-Blanks", "  inside  it  "), ("X-Quoted", 'a="b; c", d:e'), ("X-Tab", "a\tb")),
    "long": (("X-Long", "v" * 6000),),
    "many": tuple((f"X-Line-{index}", str(index)) for index in range(80)),
    "bytes": (("X-Bytes", "na\xefve caf\xe9"),),
    "date": (("Date", "not a date"), ("Expires", "-1"), ("Server", "(none) / ∅".replace("∅", "0"))),
}


@page("odd")
def odd_headers(ask: Ask) -> Answer:
    """Header lines that are odd but legal: /odd/names/1."""
    name = ask.parts[1]
    if name == "reason":
        return of_text("<p>no reason</p>", reason="")
    return of_text(ordinary(ask.target), (*HTML, *ODD_LINES[name]))


@page("cookie")
def cookie(ask: Ask) -> Answer:
    """/cookie/start/1 sets cookies and redirects to /cookie/end/1, which wants both back."""
    name = "c" + re.sub(r"\W", "", ask.identity)
    if ask.parts[1] == "start":
        lines = (
            ("Location", f"/cookie/end/{ask.identity}"),
            ("Set-Cookie", f"{name}=first; Path=/cookie/end/{ask.identity}"),
            ("Set-Cookie", f"{name}x=second; Path=/cookie/end/{ask.identity}; HttpOnly; SameSite=Lax"),
        )
        return of_text("<p>Take these.</p>", (*HTML, *lines), 302)
    if ask.cookies().get(name) == "first" and ask.cookies().get(f"{name}x") == "second":
        return of_text(ordinary(ask.target))
    return of_text("<p>No cookie, no page.</p>", HTML, 403)


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
    guess = {"body": None, "body_pattern": rf"<h1>Encoded {ask.target}</h1>\n<p>L.{{1,3}}t"}
    headers = (("Content-Type", variant.content_type),)
    return of_text(text, headers, body=body, lenient=guess if variant.guessed else {})


def _deflate_raw(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-15)
    return packer.compress(data) + packer.flush()


PACKERS: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data, mtime=0),
    "deflate": zlib.compress,
    "deflate-raw": _deflate_raw,
    "br": brotli.compress,
}


@lru_cache(maxsize=4096)
def _packed(name: str, text: str) -> bytes:
    return PACKERS[name](text.encode())


@page("compressed")
def compressed(ask: Ask) -> Answer:
    """/compressed/br/x; deflate-raw lacks the zlib header, as some servers send it."""
    name, text = ask.parts[1], ordinary(ask.target)
    lines = (*HTML, ("Content-Encoding", name.removesuffix("-raw")), ("Vary", "Accept-Encoding"))
    return of_text(text, lines, body=_packed(name, text), size=len(text))


@page("cut-gzip")
def cut_gzip(ask: Ask) -> Answer:
    """A gzip body that ends too early: what can be unpacked is stored."""
    text = ordinary(ask.target)
    body = _packed("gzip", text)
    beginning = {"body": None, "body_pattern": "^" + re.escape(text[:100])}
    lenient = {**beginning, "description": r"", "response_size": None}
    headers = (*HTML, ("Content-Encoding", "gzip"))
    return of_text(text, headers, body=body[: len(body) * 2 // 3], lenient=lenient)


@page("flaky")
def flaky(ask: Ask) -> Answer:
    """/flaky/503/2/x: that status for the first two requests, then a page. A 429 says Retry-After: 1."""
    code, failures = int(ask.parts[1]), int(ask.parts[2])
    if ask.attempt >= failures:
        return of_text(ordinary(ask.target))
    wait = (("Retry-After", "1"),) if code == 429 else ()
    return of_text(f"Not yet, {ask.target}", (*PLAIN, *wait), code)


@page("fault")
def fault(ask: Ask) -> Answer:
    """/fault/reset/N/x fails below HTTP for the first N requests, or for ever when N is 0."""
    kind, failures = Fault(ask.parts[1].replace("-", " ")), int(ask.parts[2])
    text = ordinary(ask.target)
    if failures and ask.attempt >= failures:
        return of_text(text)
    longer = len(text.encode()) + 1000 if kind is Fault.SHORT else None
    return of_text(text, declared_length=longer, fault=kind, close=True)


LOOP = r"(?i)redirect|loop|duplicate|HTTP 30\d"


@page("chain")
def chain(ask: Ask) -> Answer:
    """/chain/301-302/4-0/x: one hop for each code, to the host of that number (r: a relative URL)."""
    codes, hosts, identity = ask.parts[1].split("-"), ask.parts[2].split("-"), ask.identity
    rest = f"/chain/{'-'.join(codes[1:])}/{'-'.join(hosts[1:])}/{identity}"
    path = rest if len(codes) > 1 else f"/landed/{identity}"
    location = path if hosts[0] == "r" else ask.url(path, host_name(int(hosts[0])))
    return _to(int(codes[0]), location)


@page("gate")
def gate(ask: Ask) -> Answer:
    """Redirects to itself with a cookie, and opens when the cookie comes back."""
    name = "g" + re.sub(r"\W", "", ask.identity)
    if ask.cookies().get(name) == "open":
        return of_text(ordinary(ask.target))
    text = "<p>Wait for the cookie.</p>"
    lines = (("Location", ask.target), ("Set-Cookie", f"{name}=open; Path={ask.target}"))
    return of_text(text, (*HTML, *lines), 302)


@page("leads-to")
def leads_to(ask: Ask) -> Answer:
    """Redirects to where nothing must be fetched: /leads-to/file/x."""
    location = {
        "file": "file:///etc/passwd",
        "ftp": f"ftp://{ask.host}/etc/passwd",
        "data": "data:text/plain,root:x:0:0",
        "refused": f"http://{ask.host}:1/",
    }[ask.parts[1]]
    body = {"body": None, "body_pattern": r"^(<p>Moved|$)"}
    lenient = {"status": (302, None), "description": r".", **body}
    return _to(302, location, lenient=lenient if ask.parts[1] != "refused" else {})


WIDTH = 3
LAST_LEVEL = 5


def _page(ask: Ask, anchors: list[str], follow: Set[str], maybe: Set[str] = frozenset(), head: str = "") -> Answer:
    items = "\n".join(f"<li>{anchor}</li>" for anchor in anchors)
    links, optional_links = (frozenset(ask.url(path) for path in paths) for paths in (follow, maybe))
    text = html(f"Graph {ask.target}", f"{paragraphs(ask.target, 3)}\n<ul>\n{items}\n</ul>", head)
    return of_text(text, links=links, optional_links=optional_links)


def _link(href: str, more: str = "") -> str:
    return f'<a {more} href="{href}">to {href}</a>'.replace("<a  ", "<a ")


@page("graph")
def graph(ask: Ask) -> Answer:
    """/graph/g7/LEVEL/NUMBER: links to all of the next level, to itself and back."""
    name, level, number = ask.parts[1], int(ask.parts[2]), int(ask.parts[3])
    anchors = [_link(f"/graph/{name}/0/0"), _link(f"#top-{number}"), _link(ask.target)]
    follow = {f"/graph/{name}/0/0", ask.target}
    if level < LAST_LEVEL:
        below = [f"/graph/{name}/{level + 1}/{index}" for index in range(WIDTH)]
        follow.update(below)
        spelled = (f"../{level + 1}/1", f"{ask.url(below[2])}#part", f"{below[0]}#again")
        anchors += map(_link, (below[0], *spelled, below[1]))
    if level == 0:
        extra = {f"/status/404/{name}", f"/chain/301/r/{name}", f"/binary/png/{name}"}
        follow |= extra
        anchors += [_link(path) for path in sorted(extra)]
    return _page(ask, anchors, follow)


@page("traps")
def traps(ask: Ask) -> Answer:
    """/traps/x: links that must not be followed between some that must."""
    name = ask.identity
    other = "127.0.1.2" if ask.host == "127.0.1.1" else "127.0.1.1"
    wanted = [f"/leaf/{name}/{rest}" for rest in ("plain", "query?a=1&b=two", "blanks", "last")]
    odd = "mailto:a@b.test javascript:void(0) tel:+4312345 data:text/html,x ftp://127.0.1.1/file http:// http://[::1"
    anchors = [
        *map(_link, (wanted[0], *odd.split(), "")),
        "<a>no href</a>",
        "<a name='anchor' href>empty href</a>",
        _link(wanted[1].replace("&", "&amp;")),
        _link(f"  {wanted[2]}\n"),
        _link(ask.url(f"/outside/{name}", other)),
        _link(f"//{other}:{ask.port}/outside/{name}-2"),
        f"<!-- {_link(f'/never/{name}/comment')} -->",
        _link(f"/leaf/{name}/nofollow", 'rel="nofollow"'),
        f"<A HREF='{wanted[3]}'>upper case, single quotes</A>",
    ]
    return _page(ask, anchors, {*wanted, ask.target}, {f"/leaf/{name}/nofollow"})


@page("crossing")
def crossing(ask: Ask) -> Answer:
    """/crossing/HOSTS/LEVEL/x: links to the page of the next of three levels, on every host."""
    hosts, level, name = int(ask.parts[1]), int(ask.parts[2]), ask.identity
    below = [ask.url(f"/crossing/{hosts}/{level + 1}/{name}", host_name(number)) for number in range(hosts)]
    follow = below if level < 2 else []
    text = html(f"Crossing {ask.target}", "\n".join(map(_link, follow)), "")
    return of_text(text, links=frozenset(follow))


@page("based")
def based(ask: Ask) -> Answer:
    """/based/x: relative links count from the base, not from the page."""
    name = ask.identity
    anchors = [_link("one"), _link("./two"), _link("../up"), _link(f"/leaf/{name}/root")]
    follow = {f"/leaf/{name}/deep/one", f"/leaf/{name}/deep/two", f"/leaf/{name}/up", f"/leaf/{name}/root"}
    return _page(ask, anchors, follow, head=f'<base href="/leaf/{name}/deep/">')
