"""A small graph of pages inside one host, five levels deep, and pages with single traps.

Every page of a level links to every page of the next, so a page's depth does not depend
on the order of fetching. The page that is served says how its links are written; which of
them count is told beside it, by hand, so that a wrong reading of a link shows.
"""

from __future__ import annotations

from collections.abc import Set

from tools.site.exchange import Answer, Ask, host_name, page
from tools.site.pages import HTML
from tools.site.text import html, paragraphs

WIDTH = 3
LAST_LEVEL = 5


def _page(
    ask: Ask, anchors: list[str], follow: Set[str], maybe: Set[str] = frozenset(), head: str = ""
) -> Answer:
    content = (
        paragraphs(ask.target, 3)
        + "\n<ul>\n"
        + "\n".join(f"<li>{anchor}</li>" for anchor in anchors)
        + "\n</ul>"
    )
    text = html(f"Graph {ask.target}", content, head)
    return Answer(
        headers=HTML,
        body=text.encode(),
        text=text,
        links=frozenset(ask.url(path) for path in follow),
        optional_links=frozenset(ask.url(path) for path in maybe),
    )


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
        anchors += [
            _link(below[0]),
            _link(f"../{level + 1}/1"),
            _link(ask.url(below[2]) + "#part"),
            _link(below[0] + "#again"),
            _link(below[1]),
        ]
    if level == 0:
        extra = {f"/status/404/{name}", f"/chain/301/r/{name}", f"/binary/png/{name}"}
        follow |= extra
        anchors += [_link(path) for path in sorted(extra)]
    return _page(ask, anchors, follow)


def _other_host(ask: Ask) -> str:
    return "127.0.1.2" if ask.host == "127.0.1.1" else "127.0.1.1"


@page("traps")
def traps(ask: Ask) -> Answer:
    """/traps/x: links that must not be followed between some that must."""
    name = ask.identity
    wanted = [
        f"/leaf/{name}/plain",
        f"/leaf/{name}/query?a=1&b=two",
        f"/leaf/{name}/blanks",
        f"/leaf/{name}/last",
    ]
    anchors = [
        _link(wanted[0]),
        _link("mailto:someone@example.test"),
        _link("javascript:void(0)"),
        _link("tel:+4312345"),
        _link("data:text/html,hello"),
        _link("ftp://127.0.1.1/file"),
        _link("http://"),
        _link("http://[::1"),
        _link(""),
        "<a>no href</a>",
        "<a name='anchor' href>empty href</a>",
        _link(wanted[1].replace("&", "&amp;")),
        _link(f"  {wanted[2]}\n"),
        _link(ask.url(f"/outside/{name}", _other_host(ask))),
        _link(f"//{_other_host(ask)}:{ask.port}/outside/{name}-2"),
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
    return Answer(headers=HTML, body=text.encode(), text=text, links=frozenset(follow))


@page("based")
def based(ask: Ask) -> Answer:
    """/based/x: relative links count from the base, not from the page."""
    name = ask.identity
    anchors = [_link("one"), _link("./two"), _link("../up"), _link(f"/leaf/{name}/root")]
    follow = {f"/leaf/{name}/deep/one", f"/leaf/{name}/deep/two", f"/leaf/{name}/up", f"/leaf/{name}/root"}
    return _page(ask, anchors, follow, head=f'<base href="/leaf/{name}/deep/">')
