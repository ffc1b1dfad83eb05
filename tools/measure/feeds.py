"""Feeds, sitemaps and pages that others wrote: our links beside those of feedparser and of Scrapy.

python -m tools.measure.feeds
"""

from __future__ import annotations

import ast
import subprocess
import sys
import tarfile
import tempfile
from collections import Counter
from collections.abc import Iterator
from fnmatch import fnmatch
from importlib import import_module
from importlib.metadata import version
from pathlib import Path

from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.sitemap import Sitemap

from site_spider.engine.background import run_through
from site_spider.page.decode import kind_of
from site_spider.page.links import read_page
from site_spider.page.sitemap import read_sitemap

URL = "http://h.test/folder/file"
SOURCES = {"feedparser": "6.0.14", "Markdown": "3.11.3", "docutils": "0.23"}  # which have what is read
SOURCES |= {name: version(name) for name in ("Scrapy", "lxml")}
_ID = "an id of Atom is a name, and no link"
_CDF = "CDF is not read"
EXPLAINED = {  # why ours differ in files of this name
    "tests/*/entry_id*.xml": _ID,
    "tests/*/http_entry_id_base_*.xml": _ID,
    "tests/wellformed/lang/http_content_language_entry_title_inherit_2.xml": _ID,
    "tests/wellformed/node_precedence/atom10_id.xml": _ID,
    "tests/wellformed/base/cdf_item_abstract_xml_base.xml": _CDF,
    "tests/wellformed/cdf/item_href_map_link*.xml": _CDF,
    "tests/test_utils_sitemap.py:*: * foo [*xxe*": "nobody knows what an entity in a URL stands for",
    "tests/sample_data/link_extractor/linkextractor_latin1.html": "it is UTF-8: latin-1 is no label of an encoding",
}

Case = tuple[str, list[str], list[str]]  # name, links of the peer, ours


def fetch(folder: Path) -> None:
    """The sources, unpacked, and feedparser itself."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for name, number in SOURCES.items():
        wanted = ["--no-deps", f"--no-binary={name}", f"{name}=={number}"]
        subprocess.run([*pip, "download", *wanted, "--dest", str(folder)], check=True)
    for path in folder.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            archive.extractall(folder, filter="data")
    wanted = [f"feedparser=={SOURCES['feedparser']}", "--target", str(folder / "lib")]
    subprocess.run([*pip, "install", *wanted], check=True)
    sys.path.insert(0, str(folder / "lib"))


def listed(body: bytes) -> list[str]:
    kind = kind_of(body, "application/xml")
    return [entry.url for entry in run_through(read_sitemap(body, kind, URL)).entries] if kind else []


def feeds(root: Path) -> Iterator[Case]:
    """Beside feedparser."""
    parse = import_module("feedparser").parse
    for path in sorted(root.glob("tests/**/*.xml")) if "feedparser" in root.name else ():
        body = path.read_bytes()
        found = parse(body, response_headers={"content-location": URL}, sanitize_html=False).entries
        yield str(path.relative_to(root)), [str(entry.get("link")) for entry in found], listed(body)


def sitemaps(root: Path) -> Iterator[Case]:
    """Texts in tests, beside Scrapy's Sitemap."""
    for path in sorted(root.glob("tests/test_*sitemap.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and b"<loc" in node.value:
                body = node.value.strip()
                name = f"{path.relative_to(root)}:{node.lineno}: {' '.join(body.decode('utf-8', 'replace').split())}"
                yield name, [said["loc"] for said in Sitemap(body)], listed(body)


def pages(root: Path) -> Iterator[Case]:
    """Beside Scrapy's LinkExtractor: of which a link within the page is one, and one marked nofollow."""
    peer = LinkExtractor(tags=("a", "area", "iframe", "frame"), attrs=("href", "src"), deny_extensions=[])
    for path in sorted(root.rglob("*.html")):
        body = path.read_bytes()
        links = [link for link in peer.extract_links(HtmlResponse(URL, body=body)) if not link.nofollow]
        urls = (link.url.partition("#")[0] for link in links)
        theirs = [f"{url}/" if url.count("/") == 2 else url for url in urls if url != URL]
        found = run_through(read_page(body, "text/html", URL, wants_links=True)).links
        yield str(path.relative_to(root)), [*dict.fromkeys(theirs)], [url for some in found for url in some]


def main() -> int:
    """1: something differs, and nobody has said why."""
    unexplained: list[Case] = []
    with tempfile.TemporaryDirectory() as name:
        fetch(Path(name))
        for read in (feeds, sitemaps, pages):
            counts: Counter[str] = Counter()
            for case in (case for root in sorted(Path(name).glob("*-*")) if root.is_dir() for case in read(root)):
                theirs = [url for url in case[1] if url.lower().startswith(("http://", "https://"))]
                same, why = theirs == case[2], next((EXPLAINED[one] for one in EXPLAINED if fnmatch(case[0], one)), "")
                counts["the same" if same else why or "unexplained"] += 1
                counts["links"] += len(case[2])
                unexplained += [] if same or why else [(case[0], theirs, case[2])]
            print(f"{read.__name__}: {', '.join(f'{what}: {count}' for what, count in counts.items())}")
    for what, theirs, ours in unexplained:
        print(f"{what}\n  theirs alone: {sorted({*theirs} - {*ours})}\n  ours alone: {sorted({*ours} - {*theirs})}")
    return int(bool(unexplained))


if __name__ == "__main__":
    sys.exit(main())
