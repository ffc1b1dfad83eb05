"""Feeds, sitemaps and pages that others wrote, served on loopback and crawled into WARC files.

    python -m tools.measure.feeds [--compiled] [--race]

What the crawl found is compared with what others read: links with feedparser, Scrapy's Sitemap and
LinkExtractor, archives with warcio and the files themselves. It needs pip's index, and Debian 12 for its
packages of documentation. `--race` measures the search for links beside selectolax and resiliparse.
"""

from __future__ import annotations

import ast
import hashlib
import json
import subprocess
import sys
import tarfile
import tempfile
import time
from base64 import b32encode
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from fnmatch import fnmatch
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, NamedTuple
from urllib.parse import quote, unquote, urlsplit

from scrapy.http import HtmlResponse
from scrapy.linkextractors import LinkExtractor
from scrapy.utils.sitemap import Sitemap

from hatch_build import compiled_folder
from site_spider.engine.background import run_through
from site_spider.page import links
from site_spider.page.decode import kind_of
from site_spider.page.links import read_page
from site_spider.page.sitemap import read_sitemap
from tools.deployment.deployment import Deployment

SOURCES = {"feedparser": "6.0.14", "Markdown": "3.11.3", "docutils": "0.23"}  # which have what is read
SOURCES |= {name: version(name) for name in ("Scrapy", "lxml")}
PEERS = {"feedparser": SOURCES["feedparser"], "selectolax": "1.0.2", "warcio": "1.8.1"}
DOCUMENTS = {  # packages of Debian, and what is taken of them
    "python3.11-doc": "python3.11/html/*",
    "postgresql-doc-15": "*",
    "sqlite3-doc": "*",
    "rust-doc": "*/html/book/*",
}
_ID = "an id of Atom is a name, and no link"
_CDF = "CDF is not read"
_BEHIND = "what stands behind </html> is read, as in browsers"
EXPLAINED = {  # why ours differ in files of this name
    "*/tests/*/entry_id*.xml": _ID,
    "*/tests/*/http_entry_id_base_*.xml": _ID,
    "*/tests/wellformed/lang/http_content_language_entry_title_inherit_2.xml": _ID,
    "*/tests/wellformed/node_precedence/atom10_id.xml": _ID,
    "*/tests/wellformed/base/cdf_item_abstract_xml_base.xml": _CDF,
    "*/tests/wellformed/cdf/item_href_map_link*.xml": _CDF,
    "*/sitemaps/*xxe*": "nobody knows what an entity in a URL stands for",
    "documents/sqlite3/consortium.html": _BEHIND,
    "documents/sqlite3/prosupport.html": _BEHIND,
    "documents/sqlite3/lang_expr.html": "a backslash is a slash, as in browsers",
    "*/sample_data/link_extractor/linkextractor_latin1.html": "it is UTF-8: latin-1 is no label of an encoding",
}

Links = list[str]


class Answer(NamedTuple):
    """Of the site, as warcio reads it from an archive."""

    url: str
    status: str
    content_type: str
    body: bytes
    digest: str


def fetch(folder: Path) -> Path:
    """The folder of what is served. Peers are in `lib` beside it."""
    site = folder / "site"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    for name, number in SOURCES.items():
        wanted = ["--no-deps", f"--no-binary={name}", f"{name}=={number}"]
        subprocess.run([*pip, "download", *wanted, "--dest", str(folder)], check=True)
    for path in folder.glob("*.tar.gz"):
        with tarfile.open(path) as archive:
            archive.extraction_filter = getattr(tarfile, "data_filter", None)  # Debian 12 has none
            archive.extractall(site / "sources")
    subprocess.run(["apt-get", "--quiet", "download", *DOCUMENTS], cwd=folder, check=True)
    for name, pattern in DOCUMENTS.items():
        [path] = folder.glob(f"{name}_*.deb")
        with (
            subprocess.Popen(["dpkg-deb", "--fsys-tarfile", path], stdout=subprocess.PIPE) as packed,
            tarfile.open(fileobj=packed.stdout, mode="r|") as archive,
        ):
            for member in archive:
                member.name = member.name.partition("/share/doc/")[2]
                if member.isfile() and member.name.endswith(".html") and fnmatch(member.name, pattern):
                    archive.extract(member, site / "documents", filter="data")
    for path in site.glob("sources/*/tests/test_*sitemap.py"):  # the sitemaps of Scrapy stand in its tests
        write_sitemaps(path, site / "sources" / "sitemaps")
    subprocess.run([*pip, "install", *map("==".join, PEERS.items()), "--target", str(folder / "lib")], check=True)
    sys.path.append(str(folder / "lib"))
    return site


def write_sitemaps(path: Path, folder: Path) -> None:
    """A file for each text of a test that is one; its name says the line, and how it begins."""
    folder.mkdir(exist_ok=True)
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Constant) and isinstance(node.value, bytes) and b"<loc" in node.value:
            kind = "-xxe" if b"xxe" in node.value else ""
            (folder / f"{path.stem}-{node.lineno}{kind}.xml").write_bytes(node.value.strip())


# --- the crawl -------------------------------------------------------------------------------------------


class Site(SimpleHTTPRequestHandler):
    """Files, and nothing for a folder without an index."""

    protocol_version = "HTTP/1.1"
    answered: ClassVar[Counter[int]] = Counter()

    def list_directory(self, path: Any) -> None:
        self.send_error(404, f"no index in {path}")

    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        self.answered[int(code)] += 1

    def log_message(self, *_: Any) -> None:
        """To nobody."""


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Site, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


def seeds_of(site: Path) -> list[str]:
    """Each feed, sitemap and page of the sources, and the first page of each set of documents."""
    globs = ("sources/feedparser-*/tests/**/*.xml", "sources/sitemaps/*.xml", "sources/**/*.html")
    paths = [path for pattern in globs for path in site.glob(pattern)]
    for folder in site.glob("documents/*"):
        paths.append(min(folder.glob("**/index.html"), key=lambda path: len(path.parts)))
    return sorted(quote(str(path.relative_to(site))) for path in paths)


def crawl(folder: Path, address: str, seeds: list[str], *, compiled: bool) -> dict[str, dict[str, Any]]:
    """The documents by URL; all URLs count as different."""
    settings = {"SITE_SINKS": "local,warc", "SITE_IDLE_CLOSE_SECONDS": "5", "SITE_DROP_PARAMS": "none"}
    settings |= {"SITE_KAFKA_BROKERS": "", "DEPTH_LIMIT": "0", "RETRY_TIMES": "0"}
    with closing(Deployment(folder, settings)) as deployment:
        deployment.produce([(None, json.dumps({"url": address + path}).encode()) for path in seeds])
        more = {"PYTHONPATH": str(compiled_folder())} if compiled else {}
        run = deployment.start("-v", sys.prefix, **more)
        if run.wait(3_600):
            raise SystemExit(f"the crawl has failed: {run.text()[-3_000:]}")
        return {document["url"]: document for document in deployment.documents().values()}


def archived(folder: Path) -> tuple[list[Answer], Counter[str]]:
    """What warcio finds in the archives, whose digests it checks; and how many records of each type."""
    answers, kinds = [], Counter[str]()
    for path in sorted(folder.glob("*.warc.gz")):
        with path.open("rb") as file:
            for record in import_module("warcio.archiveiterator").ArchiveIterator(file, check_digests="raise"):
                kinds[record.rec_type] += 1
                if record.rec_type == "response":
                    said, body = record.http_headers, record.raw_stream.read()
                    url, digest = (record.rec_headers.get(f"WARC-{name}") for name in ("Target-URI", "Payload-Digest"))
                    answers.append(Answer(url, said.get_statuscode(), said.get("Content-Type", ""), body, digest))
    return answers, kinds


# --- what others read ------------------------------------------------------------------------------------


def of_feed(answer: Answer) -> tuple[Links, Links]:
    """Beside feedparser."""
    parse = import_module("feedparser").parse
    found = parse(answer.body, response_headers={"content-location": answer.url}, sanitize_html=False).entries
    return [str(entry.get("link")) for entry in found], listed(answer)


def of_sitemap(answer: Answer) -> tuple[Links, Links]:
    """Beside Scrapy's Sitemap."""
    return [said["loc"] for said in Sitemap(answer.body)], listed(answer)


def listed(answer: Answer) -> Links:
    kind = kind_of(answer.body, answer.content_type)
    return [entry.url for entry in run_through(read_sitemap(answer.body, kind, answer.url)).entries] if kind else []


PEER = LinkExtractor(tags=("a", "area", "iframe", "frame"), attrs=("href", "src"), deny_extensions=[])


def of_page(answer: Answer) -> tuple[Links, Links]:
    """Beside Scrapy's LinkExtractor: of which a link within the page is one, and one marked nofollow."""
    response = HtmlResponse(answer.url, body=answer.body)
    urls = (link.url.partition("#")[0] for link in PEER.extract_links(response) if not link.nofollow)
    theirs = dict.fromkeys(f"{url}/" if url.count("/") == 2 else url for url in urls)
    found = run_through(read_page(answer.body, answer.content_type, answer.url, wants_links=True)).links
    ours = dict.fromkeys(chain(*found))
    return [url for url in theirs if url != answer.url], [url for url in ours if url != answer.url]


def kind_of_file(answer: Answer) -> str:
    is_feed = answer.content_type.endswith("xml")
    return "pages" if not is_feed else "sitemaps" if "/sources/sitemaps/" in answer.url else "feeds"


READERS = {"feeds": of_feed, "sitemaps": of_sitemap, "pages": of_page}


class Comparison:
    """What differs, and the URLs that a crawl of the peers would have fetched."""

    def __init__(self, address: str, seeds: Links) -> None:
        self._address = address
        self.urls = {address + path for path in seeds}
        self.counts = {kind: Counter[str]() for kind in READERS}
        self.found: set[str] = set()  # URLs of links
        self.unexplained: list[str] = []

    def add(self, answer: Answer, document: Mapping[str, Any]) -> None:
        kind, name = kind_of_file(answer), answer.url.removeprefix(self._address)
        theirs, ours = READERS[kind](answer)
        theirs = [url for url in theirs if url.lower().startswith(("http://", "https://"))]
        why = next((EXPLAINED[one] for one in EXPLAINED if fnmatch(name, one)), "")
        self.counts[kind]["the same" if theirs == ours else why or "unexplained"] += 1
        self.counts[kind]["links"] += len(ours)
        self.found.update(ours)
        self.urls |= {url for url in (ours if why else theirs) if url.startswith(self._address)}
        if theirs != ours and not why:
            alone = f"theirs alone: {sorted({*theirs} - {*ours})}\n  ours alone: {sorted({*ours} - {*theirs})}"
            self.unexplained.append(f"{name}\n  {alone}")
        if kind != "pages" and (document.get("links_out") or 0) != len(ours):
            self.unexplained.append(f"{name}: the crawl found {document.get('links_out')} links, not {len(ours)}")


def compare(folder: Path, address: str, seeds: Links, documents: Mapping[str, Any]) -> Comparison:
    """Links, URLs, and the records of the archive with what was served."""
    answers, kinds = archived(folder / "data" / "warc")
    found = Comparison(address, seeds)
    for answer in answers:
        path = folder / "site" / unquote(urlsplit(answer.url).path).lstrip("/")
        path = path / "index.html" if path.is_dir() else path
        if answer.status == "200" and (answer.digest, answer.body) != (digest_of(path), path.read_bytes()):
            found.unexplained.append(f"{answer.url}: the archive has another payload than the file")
        if answer.status == "200" and answer.content_type.endswith(("xml", "html")):
            found.add(answer, documents[answer.url])
    if differ := found.urls ^ documents.keys():
        found.unexplained.append(f"fetched, or not, unlike the peers' links: {sorted(differ)}")
    served = Site.answered.total()
    if {kinds["response"] + kinds["revisit"], kinds["request"]} != {served}:
        found.unexplained.append(f"{served} answers, but the archive has {dict(kinds)}")
    print(f"archive: {dict(kinds)} of {served} answers, all payloads as served; {len(documents)} documents")
    return found


def digest_of(path: Path) -> str:
    return f"sha1:{b32encode(hashlib.sha1(path.read_bytes(), usedforsecurity=False).digest()).decode()}"


# --- the race ----------------------------------------------------------------------------------------------

SELECTED = "a[href], area[href], iframe[src], frame[src]"


def by_selectolax(text: str, _url: str) -> Links:
    nodes = import_module("selectolax.lexbor").LexborHTMLParser(text).css(SELECTED)
    return [node.attributes["href" if "href" in node.attributes else "src"] or "" for node in nodes]


def by_resiliparse(text: str, _url: str) -> Links:
    document = import_module("resiliparse.parse.html").HTMLTree.parse(text).document
    return [node.getattr("href") or node.getattr("src") or "" for node in document.query_selector_all(SELECTED)[:]]


def by_ours(text: str, _url: str) -> Links:
    return [found for tag in links.tags(text) if tag for found in tag[1].values()]


def race(pages: list[Answer]) -> None:
    """µs of a page, one after the other on each, in five runs that each begin with empty caches."""
    texts = [(HtmlResponse(page.url, body=page.body).text, page.url) for page in pages]
    print(f"{len(texts)} pages of {sum(len(text) for text, _ in texts) / len(texts):,.0f} characters, µs of a page:")
    with_links: dict[str, Callable[[str, str], object]]
    with_links = {"tags and links, ours": lambda text, url: [*chain(*links.link_slices(text, url))]}
    for contestants in (
        {f"tags, {read.__name__}": read for read in (by_ours, by_selectolax, by_resiliparse)},
        with_links,
    ):
        runs: dict[str, list[float]] = {name: [] for name in contestants}
        for _ in range(5):
            links._short_tag.cache_clear()
            links._find.cache_clear()
            spent = dict.fromkeys(contestants, 0.0)
            for text, url in texts:
                for name, read in contestants.items():
                    began = time.thread_time()
                    read(text, url)
                    spent[name] += time.thread_time() - began
            for name, seconds in spent.items():
                runs[name].append(seconds / len(texts) * 1e6)
        for name, found in runs.items():
            print(f"  {name}: {min(found):,.0f} ({', '.join(f'{each:,.0f}' for each in found)})")


def main() -> int:
    """1: something differs, and nobody has said why."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        site = fetch(folder)
        seeds = seeds_of(site)
        with serving(site) as address:
            documents = crawl(folder, address, seeds, compiled="--compiled" in sys.argv)
        found = compare(folder, address, seeds, documents)
        if "--race" in sys.argv:
            answers = archived(folder / "data" / "warc")[0]
            race([one for one in answers if one.status == "200" and "/documents/" in one.url])
    for kind, counts in found.counts.items():
        print(f"{kind}: {', '.join(f'{what}: {count}' for what, count in counts.items())}")
    print(f"links lead to {len(found.found)} URLs")
    print(*found.unexplained, sep="\n")
    return int(bool(found.unexplained))


if __name__ == "__main__":
    sys.exit(main())
