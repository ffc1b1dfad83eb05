"""How spiders meet sitemaps: which are followed, what is kept of them, and Scrapy's SitemapSpider."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, Self

from scrapy import Request
from scrapy.http import Response
from scrapy.settings import BaseSettings
from scrapy.spiders import SitemapSpider

from site_spider import meta_keys, options, runtime
from site_spider.download.bodies import LARGE_BYTES
from site_spider.errors import ConfigError
from site_spider.ledger.completion import Job
from site_spider.page.decode import GZIP, beginning_of
from site_spider.page.links import LinkBase
from site_spider.page.sitemap import ListedPage, is_listing, parse_lastmod
from site_spider.page.url import host_of, in_scope
from site_spider.sources.model import LinkRule, Source

_ROOT = re.compile(rb"<(?:[\w.-]+:)?(?:urlset|sitemapindex)[\s>/]")
ROBOTS = "/robots.txt"
AT_ONCE = 50  # entries that are joined in one step: long ones take 0.1 ms each
_AGE = re.compile(r"(\d{1,5})d")


def callback_names(spider: SitemapSpider) -> Iterator[str]:
    """Methods of the spider that get the pages of its sitemaps, and the sitemaps of an index."""
    yield "_parse_sitemap"
    for _pattern, callback in spider.sitemap_rules:
        name = callback if isinstance(callback, str) else getattr(callback, "__name__", "")
        if getattr(getattr(spider, name, None), "__self__", None) is spider:
            yield name


def looks_like_sitemap(response: Response) -> bool:
    """Whether a page is a sitemap, an index of sitemaps, or a robots.txt, which names some."""
    if not 200 <= response.status < 300:
        return False
    return response.url.endswith(ROBOTS) or bool(_ROOT.search(beginning_of(response.body)))


def is_large(response: Response) -> bool:
    """Whether it takes long to read."""
    return len(response.body) >= LARGE_BYTES or response.body.startswith(GZIP)


class SitemapRules(NamedTuple):
    """Which sitemaps give links, and from when on a page must have changed: a date, or days before now."""

    mode: str = "off"  # off, seed or robots
    since: datetime | timedelta | None = None
    keeps_robots: bool = False

    @classmethod
    def read(cls, settings: BaseSettings) -> Self:
        text = options.text(settings, "SITE_SITEMAP_SINCE")
        since: datetime | timedelta | None = None
        if text and (age := _AGE.fullmatch(text)):
            since = timedelta(days=int(age[1]))
        elif text and (since := parse_lastmod(text)) is None:
            raise ConfigError(
                f"SITE_SITEMAP_SINCE is {text!r}, but must be a date such as 2026-01-31, or days such as 7d."
            )
        mode = options.choice(settings, "SITE_SITEMAPS", ("off", "seed", "robots"))
        return cls(mode, since, options.boolean(settings, "SITE_KEEP_ROBOTS"))

    @property
    def asks_for_robots(self) -> bool:
        return self.mode == "robots" or self.keeps_robots

    @property
    def are_read(self) -> bool:
        return self.mode != "off" or self.keeps_robots

    def since_when(self) -> datetime | None:
        """The earliest date of what is followed; None: all is."""
        return runtime.now(UTC) - self.since if isinstance(self.since, timedelta) else self.since


def listed_in(request: Request, job: Job | None) -> dict[str, Any]:
    """What the sitemap says that a page was found in, in this process or before it was spilled.

    Of a file of sitemaps that is checked again, what it was named as.
    """
    meta = request.meta
    said, is_checked = meta.get(meta_keys.SITEMAP), meta.get("if_changed")
    if said is None and job is not None and job.parent is None and (job.seed.spilled or is_checked):
        said = job.seed.extra.get("sitemap")
        said = said if job.seed.spilled or is_listing(said) else None
    return said if isinstance(said, dict) else {}


def is_robots(listed: Mapping[str, Any]) -> bool:
    """Whether it is a robots.txt that was asked for its sitemaps."""
    return listed.get("robots") is True


def is_robots_url(url: str) -> bool:
    """Whether it is that of the robots.txt of a host."""
    return url.endswith(ROBOTS) and url.count("/") == 3


def is_page_of_seed(job: Job | None) -> bool:
    """Whether it is the page that a producer asked for, also where another process has begun it."""
    return job is not None and not job.is_link


def level_below(kind: str, listed: Mapping[str, Any]) -> int | None:
    """The number of indexes above what a file of this kind names; None for pages."""
    level = listed.get("level", 0)
    return 1 + max(0, level) if kind == "sitemapindex" and isinstance(level, int) else None


def urls_of(entries: list[ListedPage], level: int | None, source: str) -> Iterator[dict[str, dict[str, Any]]]:
    """In slices, what the file says of each URL; the list is emptied meanwhile."""
    entries.reverse()
    while entries:
        base, said = LinkBase.parse(source, "utf-8"), dict[str, dict[str, Any]]()
        for _ in range(min(AT_ONCE, len(entries))):
            entry = entries.pop()
            if (url := base.join(entry.url.partition("#")[0])) is not None:
                said.setdefault(url, entry.meta(source, level))
        yield said


def in_reach(source: Source | None, scope: str, anchor: str, urls: Iterable[str]) -> list[str]:
    """Of these URLs those within the link scope, and those to hosts of a source with rules of its own."""
    if source is None:
        return in_scope(scope, anchor, urls)
    known = list(urls)
    within = set(in_scope(scope, anchor, known))
    return [url for url in known if url in within or source.match.has_host(host_of(url))]


def meta_by_rule(rule: LinkRule) -> dict[str, Any]:
    """Of the request for a link that meets it."""
    return {} if rule.to is None else {meta_keys.TO_TOPIC: rule.to, meta_keys.LEAF: rule.not_extract}


def taken_by_rules(requests: Iterable[Request], rules: Sequence[LinkRule]) -> Iterator[Request]:
    """Of those for entries, what meets a rule of a source for links anywhere, and further files."""
    for request in requests:
        if is_listing(request.meta[meta_keys.SITEMAP]):
            yield request
        elif rule := next((rule for rule in rules if rule.css is None and rule.takes(request.url)), None):
            request.meta.update(meta_by_rule(rule))
            yield request
