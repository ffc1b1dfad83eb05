"""The spider: makes a result of every answer and every failure, and follows links."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from itertools import chain
from typing import Any, ClassVar, Self

from scrapy import Request, Spider
from scrapy.crawler import Crawler
from scrapy.http import Response
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings
from scrapy.spidermiddlewares.httperror import HttpError
from scrapy.spiders import SitemapSpider
from twisted.python.failure import Failure

from site_spider import meta_keys, options
from site_spider.download.bodies import LARGE_BYTES, Bodies
from site_spider.download.proxies import proxied_by
from site_spider.dupefilter.dupefilter import SeenDupeFilter
from site_spider.dupefilter.remote import usual_form
from site_spider.engine import flow as engine_hooks
from site_spider.engine.background import Turns, run_through
from site_spider.engine.scrapy_parts import is_trial, part_of, quick_request
from site_spider.frontier.spill import is_of_page_alone
from site_spider.frontier.waiter import LinksInHand, source_of
from site_spider.ledger.completion import Completion, Job, job_of
from site_spider.page.decode import BodyLimits, kind_of, media_type
from site_spider.page.directives import directives, forbids
from site_spider.page.links import LinkBase, Page, read_page
from site_spider.page.sitemap import DEEPEST_INDEX, Sitemap, is_listing, read_sitemap, sitemaps_of_robots
from site_spider.page.url import SCOPES, host_of, in_scope, is_safe, site_of
from site_spider.results.document import (
    Result,
    content_type_of,
    describe_request,
    describe_response,
    describe_status,
    header_texts,
    page_of,
)
from site_spider.results.failures import describe_exception, describe_retries
from site_spider.results.pipeline import describe_host, describe_job, given_by, gives_page_result
from site_spider.service import environment
from site_spider.service.environment import apply_custom_settings, apply_environment
from site_spider.service.settings_checks import check_names, check_scrapy_settings
from site_spider.sources.extraction import NEXT_PAGE, Extracted, FoundLink
from site_spider.sources.extraction_process import Extractor, PageBody
from site_spider.sources.library import SourceFolder
from site_spider.sources.model import Source
from site_spider.spiders import known_items
from site_spider.spiders.conditional import describe_check, describe_outcome, is_for_body, renews
from site_spider.spiders.sitemap_rules import (
    AT_ONCE,
    ROBOTS,
    SitemapRules,
    callback_names,
    in_reach,
    is_large,
    is_page_of_seed,
    is_robots,
    is_robots_url,
    level_below,
    listed_in,
    looks_like_sitemap,
    meta_by_rule,
    taken_by_rules,
    urls_of,
)
from site_spider.spiders.text_and_duplicates import PageTexts
from site_spider.tasks.declaration import TaskRules
from site_spider.tasks.unfollowed_links import rules_of

# --- by source: what a source makes of a page: items, and requests for the links that its rules find ----

_LONGEST = 1_000  # characters of a description


def requests_of_source(
    source: Source, found: Extracted, response: Response, scope: str, anchor: str
) -> Iterator[list[Request]]:
    """For the links within the scope, and for those to hosts of the source, in slices."""
    for begin in range(0, len(found.links), AT_ONCE):
        links = found.links[begin : begin + AT_ONCE]
        wanted = set(in_reach(source, scope, anchor, [link.url for link in links]))
        made = (_request(source, link, response) for link in links if link.url in wanted)
        yield [request for request in made if request is not None]


def _request(source: Source, link: FoundLink, response: Response) -> Request | None:
    if link.rule == NEXT_PAGE:
        number = response.meta.get(meta_keys.PAGE_NUMBER, 1) + 1
        within = source.pagination is not None and number <= source.pagination.limit
        run = {name: response.meta[name] for name in (meta_keys.KNOWN_RUN,) if name in response.meta}
        return Request(link.url, meta={meta_keys.PAGE_NUMBER: number, **run}) if within else None
    return Request(link.url, meta=meta_by_rule((source.follow or ())[link.rule]))


# ruff: noqa: ERA001 - the settings that people edit here stand commented out


class SeedSpider(Spider):
    """Fetches what seeds ask for. To be subclassed for other parsing: `parse` gets every response."""

    name = "crawl_spider"
    # Settings of this spider: edit them here. The environment and the command line win over them. A spider of
    # your own may have a topic and a group of its own, so that several run side by side: docs/own-spiders.md.
    custom_settings: ClassVar[dict[str, Any]] = {  # type: ignore[misc]
        # "SITE_KAFKA_BROKERS": "kafka1:9092,kafka2:9092",
        # "SITE_SEED_TOPIC": "seeds",
        # "SITE_CONSUMER_GROUP": "site_spider",
        # "SITE_SINKS": "elasticsearch",
        # "SITE_ELASTICSEARCH_HOSTS": "http://elasticsearch1:9200",
        # "SITE_RESULTS_INDEX": "site_results",
        # "SITE_ITEMS_INDEX": "site_items",
        # "CONCURRENT_REQUESTS": 64,
    }
    takes_seeds = True
    seed_callbacks: tuple[str, ...] = ("parse",)  # what a seed's `callback` may name
    page_results = True  # False: items alone are written, and the results of pages that failed
    exit_code = 0  # of `scrapy crawl`; set when the crawl could not start or go on

    @classmethod
    def update_settings(cls, settings: BaseSettings) -> None:
        """`custom_settings`, and the environment above them; below both, in another project, ours."""
        if environment.has_addon(settings):
            environment.join_settings(settings)  # Scrapy itself asks add-ons only when the spider has been made
        apply_custom_settings(settings, cls.custom_settings or {})
        apply_environment(settings)
        environment.add_our_parts(settings)  # beside those of the command line, say
        environment.OurParts.come_last(settings)
        if is_trial() and (settings.getpriority("FEEDS") or 0) < SETTINGS_PRIORITIES["cmdline"]:
            settings.set("FEEDS", {}, priority="cmdline")  # files of the crawl: a trial would empty them

    @classmethod
    def from_crawler(cls, crawler: Crawler, *args: Any, **kwargs: Any) -> Self:
        check_names(crawler.settings)
        check_scrapy_settings(crawler.settings)
        spider = super().from_crawler(crawler, *args, **kwargs)
        if isinstance(spider, SitemapSpider):  # so that links of a long sitemap can be spilled
            spider.seed_callbacks = (*spider.seed_callbacks, *callback_names(spider))
        spider.link_scope = options.choice(crawler.settings, "SITE_LINK_SCOPE", SCOPES)
        site_of("example.com")  # reads the list of suffixes now, and not while crawling
        spider.follow_nofollow = options.boolean(crawler.settings, "SITE_FOLLOW_NOFOLLOW")
        spider.depth_limit = options.integer(crawler.settings, "DEPTH_LIMIT")
        spider.body_limits = BodyLimits(
            options.integer(crawler.settings, "SITE_BODY_MAX_BYTES"),
            options.boolean(crawler.settings, "SITE_KEEP_BINARY"),
        )
        usual_form(crawler.settings)  # what is wrong with it ends the start here, before there is an engine
        spider.sitemaps = SitemapRules.read(crawler.settings)
        spider.page_texts = PageTexts.read(crawler.settings)
        return spider

    link_scope = "host"
    follow_nofollow = False
    depth_limit = 0
    body_limits = BodyLimits()
    sitemaps = SitemapRules()
    page_texts: PageTexts | None = None  # with SITE_TEXT or SITE_NOINDEX

    async def start(self) -> AsyncIterator[Any]:
        return
        yield

    @property
    def callback_of_pages(self) -> Callable[..., Any]:
        """What gets the response to a request without a callback, such as a seed's."""
        if isinstance(self, SitemapSpider):
            return self._parse_page_or_sitemap
        return engine_hooks.default_callback(self)

    @gives_page_result
    async def parse(self, response: Response) -> Iterable[Any]:
        """One result, and a request for each link to follow: a list, but of a long sitemap."""
        assert response.request is not None
        job = job_of(response.request)
        listed_as = listed_in(response.request, job)
        wants_links = self._wants_links(response, job, listed_as)
        await self._turn(response)
        if in_hand := part_of(self.crawler, LinksInHand) if wants_links and job is not None else None:
            await in_hand.begin(response.request, len(response.body))
        source = self._source_of(response, job)
        rules = None if source is None else source.follow
        page = await self._read(response, wants_links=wants_links and rules is None)
        result = self._result(response.request, job)
        self._describe_answer(result, response, page)
        if self.page_texts is not None and not await self._read_text(response, result, job):
            wants_links, page = False, page._replace(links=())
        anchor = _anchor_host(response, job)
        if self.page_texts and (first := self._canonical_first(result, response.request, job, anchor, wants_links)):
            return first
        requests = self._robots_of_hosts(job, response.url)
        listed: Iterable[Request] = []
        items: list[Any] = []
        if source is not None and result.description is None and page.encoding is not None:
            found = await self._extracted(source, response, result, job, wants_links=wants_links)
            slices = requests_of_source(source, found, response, self._scope_of(job), anchor)
            requests += chain(*await self._turns.take(slices))
            items = found.items
        if wants_links and self.sitemaps.are_read and rules != []:  # before links, which say less of a page
            listed = await self._follow_listed(response, result, listed_as, anchor, job, source if rules else None)
        found_links = await self._follow_found(page.links, anchor, job) if page.links else []
        if in_hand is not None:
            in_hand.found(response.request, len(requests) + len(found_links))
        is_page = self.page_results or result.description is not None or renews(response.request)
        is_wanted = self.sitemaps.keeps_robots if is_robots(listed_as) else is_page
        if is_wanted or job is None:
            items.insert(0, await self._merged(result, job, anchor) if self.page_texts else result)
        else:
            job.page, job.answer = Job.NO_DOCUMENT, None if is_robots(listed_as) else result
        output = chain(items, requests, listed, found_links)
        return [*output] if isinstance(listed, list) else output

    async def _read_text(self, response: Response, result: Result, job: Job | None) -> bool:
        """Fill in what a page says of itself; whether its links may be followed."""
        assert self.page_texts is not None
        scope = None if job is None else job.seed.page_scope
        extractor = part_of(self.crawler, Extractor)
        dropped = await self.page_texts.fill(result, response, extractor, scope)
        if job is not None:
            job.dropped = dropped
            job.exchanges = () if dropped else job.exchanges  # which are for archives
        rules = self._rules_of(job)
        return result.duplicate_of is None or rules is None or rules.task.follow_duplicates

    async def _merged(self, result: Result, job: Job | None, anchor: str) -> Result:
        """The result as it is stored: with SITE_CANONICAL=merge under its canonical page."""
        if self.page_texts is None or job is None:
            return result
        is_near = bool(in_scope(self._scope_of(job), anchor, [result.canonical or ""]))
        merged = await self.page_texts.merged(result, job, self._look_ups.urls, is_in_scope=is_near)
        if merged is None:
            return result
        job.page = Job.NO_DOCUMENT  # of its own
        return merged

    def _canonical_first(
        self, result: Result, request: Request, job: Job | None, anchor: str, wants_links: bool
    ) -> list[Request]:
        """Requests for its canonical page, and for this one again behind it, if it may be merged then."""
        if self.page_texts is None or job is None or result.canonical is None or result.description is not None:
            return []
        near = in_scope(self._scope_of(job), anchor, [result.canonical])
        again = self.page_texts.again(result, request, job, self.crawler) if near else None
        return [] if again is None else [*(self._requests(near, anchor, job) if wants_links else ()), again]

    @cached_property
    def _look_ups(self) -> known_items.LookUps:
        return known_items.LookUps(self.crawler)  # opens nothing yet: feeds ask a spider for each attribute

    def _source_of(self, response: Response, job: Job | None) -> Source | None:
        folder = part_of(self.crawler, SourceFolder)
        return source_of(folder.library, job, response.url) if folder is not None and folder.library.enabled else None

    async def _extracted(
        self, source: Source, response: Response, result: Result, job: Job | None, *, wants_links: bool
    ) -> Extracted:
        """The result says which items are left out."""
        extractor = part_of(self.crawler, Extractor)
        if extractor is None:
            return Extracted()
        page = PageBody(response.url, response.body, content_type_of(response), wants_links, self.follow_nofollow)
        found = await extractor.extract(source, page)
        for said in found.notes:
            self.logger.debug("%s: %s", response.url, said)
        if found.lost:
            result.description = f"not extracted: {'; '.join(found.lost)}"[:_LONGEST]
        most = None if source.pagination is None else source.pagination.stop_when_known
        if job is None or most is None:
            return found
        known_items.begin(response, job, part_of(self.crawler, SeenDupeFilter))
        return found if self._look_ups.items is None else await self._look_ups.items.cut(most, found, response, job)

    def parse_with_rules(
        self, response: Response, callback: Any, cb_kwargs: dict[str, Any], follow: bool = True
    ) -> Any:
        """CrawlSpider's, where this is mixed with it: NotExtract of a seed holds for rules, too."""
        job = None if response.request is None else job_of(response.request)
        follow = follow and (job is None or not job.seed.not_extract)
        return super().parse_with_rules(response, callback, cb_kwargs, follow)  # type: ignore[misc]

    async def _parse_page_or_sitemap(self, response: Response) -> Any:
        is_sitemap = looks_like_sitemap(response)
        output = (self._parse_sitemap if is_sitemap else engine_hooks.default_callback(self))(response)
        return await output if inspect.isawaitable(output) else output

    async def _parse_sitemap(self, response: Response) -> AsyncIterator[Request]:
        """SitemapSpider's, where this is mixed with it: NotExtract holds, a large one is read in a thread."""
        assert response.request is not None
        job = job_of(response.request)
        if not self._wants_links(response, job, listed_in(response.request, job)):
            return
        read = super()._parse_sitemap  # type: ignore[misc]
        if is_large(response):
            await self._turn(response)
            requests = await asyncio.to_thread(read, response)  # it reads all, and makes requests one by one
        else:
            requests = read(response)
        async for request in self._turns.through(requests):
            yield request

    async def page_result(self, response: Response) -> Result | None:
        """The result of a page whose callback does not give it; None for what needs none, as a robots.txt.

        A failure has one always: each seed ends as something that can be found.
        """
        assert response.request is not None
        job = job_of(response.request)
        is_well = describe_status(response.status) is None and (job is None or job.error is None)
        is_of_nobody = is_robots(listed_in(response.request, job)) and not self.sitemaps.keeps_robots
        if is_of_nobody or (is_well and not self.page_results and not renews(response.request)):
            if job is not None and not is_of_nobody:
                job.answer = response  # a page of its task, stored or not
            return None
        await self._turn(response)
        result = self._result(response.request, job)
        await self._describe(result, response, job)
        _anchor_host(response, job)
        return result

    async def _describe(self, result: Result, response: Response, job: Job | None) -> None:
        self._describe_answer(result, response, await self._read(response, wants_links=False))
        if self.page_texts is not None:
            await self._read_text(response, result, job)

    async def _read(self, response: Response, *, wants_links: bool) -> Page:
        """A small page in turns of the event loop; a large one in a thread, one after the other."""
        body = response.body
        steps = read_page(
            body,
            content_type_of(response),
            response.url,
            wants_links=wants_links,
            follow_nofollow=self.follow_nofollow,
            limits=self.body_limits,
        )
        if len(body) < LARGE_BYTES:
            return await self._turns.run(steps)
        return await asyncio.to_thread(run_through, steps)

    async def _turn(self, response: Response) -> None:
        """Until it is this large body's turn; before `in_hand.begin`, else two would wait for each other."""
        if len(response.body) >= LARGE_BYTES and (bodies := part_of(self.crawler, Bodies)) is not None:
            assert response.request is not None
            await bodies.turn(response.request)

    @gives_page_result
    async def failed(self, failure: Failure) -> Any:
        """The errback: a failure result, but of a robots.txt that nobody wants as a page."""
        request: Request = failure.request  # type: ignore[attr-defined]
        job = job_of(request)
        if job is not None and is_robots(listed_in(request, job)) and not self.sitemaps.keeps_robots:
            job.page = Job.NO_DOCUMENT
            return []
        given = given_by(self, await self.failure_result(failure), job, request.callback)
        if job is not None and job.parent is None:
            job.entry.found_at(host_of(job.url))  # where else
        return [*given, *self._robots_of_hosts(job)]

    async def failure_result(self, failure: Failure) -> Result:
        """The result of a page whose errback does not give it."""
        request: Request = failure.request  # type: ignore[attr-defined]
        job = job_of(request)
        result = self._result(request, job)
        assert failure.value is not None
        if self.page_texts is not None and job is not None:
            self.page_texts.forget(job)
        refused = getattr(failure, "response", None)  # a spider middleware of somebody's did not want it
        response = getattr(failure.value, "response", refused)  # an HttpError carries one
        if isinstance(response, Response):
            await self._turn(response)
            await self._describe(result, response, job)
        elif renews(request):
            result.unchanged = None  # whatever the answer was: what is stored stays
        if not isinstance(failure.value, HttpError):
            result.description = describe_exception(failure.value, request) + describe_retries(request.meta)
        return result

    def describe_answer(self, result: Result, response: Response) -> None:
        """Fill in what can be told at once of a page that went wrong: of a large body the beginning."""
        assert response.request is not None
        self._describe_attempt(result, response.request)
        limits = self.body_limits
        limits = limits._replace(max_bytes=min(limits.max_bytes or LARGE_BYTES, LARGE_BYTES))
        steps = read_page(response.body, content_type_of(response), response.url, wants_links=False, limits=limits)
        self._describe_answer(result, response, run_through(steps))
        job, texts = job_of(response.request), self.page_texts
        if texts is not None and not texts.fill_failed(result) and job is not None:
            job.exchanges = ()

    @gives_page_result
    async def unchanged(self, response: Response) -> list[Any]:
        """A page that is what it was: its check, or all for its body, is written, and no link is followed."""
        assert response.request is not None
        job = job_of(response.request)
        result = self._result(response.request, job)
        anchor = _anchor_host(response, job)
        if is_for_body(response.request):
            result = await self._result_for_body(result, response, job, anchor)
        else:
            describe_check(result, response)
            result.response_size = len(response.body) or None  # that of the stored one, if it came again
            if self.page_texts is not None and job is not None:
                self.page_texts.recall(result, response.request.meta[meta_keys.CHECKED].known, job.seed.page_scope)
        return [*given_by(self, result, job), *self._robots_of_hosts(job, response.url)]

    async def _result_for_body(self, result: Result, response: Response, job: Job | None, anchor: str) -> Result:
        """What `parse` says of a page, without its links and items."""
        assert response.request is not None
        await self._turn(response)
        await self._describe(result, response, job)
        listed = listed_in(response.request, job)
        if self.sitemaps.are_read and self._wants_links(response, job, listed):
            sitemap, _ = await self._read_sitemap(response, result, listed)
            result.add_note(sitemap.note)
        return await self._merged(result, job, anchor)

    def keep_seed_open(self, request: Request) -> AbstractContextManager[Any]:
        """For a task that goes on after its callback: `with` this, the seed completes when it is left.

        To be called from the callback, not from the task: the seed may be complete when that begins.
        """
        completion, job = part_of(self.crawler, Completion), job_of(request)
        if completion is None or job is None:
            return nullcontext()
        return completion.keep_open(job.entry)

    @cached_property
    def _turns(self) -> Turns:
        return Turns.of_running_loop()

    async def _follow_listed(
        self,
        response: Response,
        result: Result,
        listed: Mapping[str, Any],
        anchor: str,
        job: Job | None,
        source: Source | None,
    ) -> Iterable[Request]:
        """The entries of a sitemap or feed, by the rules of a source; of a long one each in its turn."""
        sitemap, level = await self._read_sitemap(response, result, listed)
        result.description = sitemap.refusal or result.description
        result.add_note(sitemap.note)
        if not sitemap.entries:
            return []
        found = urls_of(sitemap.entries, level, response.url)
        is_flat = is_listing(listed)
        requests = chain.from_iterable(self._requests(said, anchor, job, said, is_flat, source) for said in found)
        taken = requests if source is None else taken_by_rules(requests, source.follow or ())
        return taken if len(sitemap.entries) > AT_ONCE else list(taken)

    def _robots_of_hosts(self, job: Job | None, found_at: str | None = None) -> list[Request]:
        """For a seed's page, whatever became of it: the robots.txt of its host, and of where it was found."""
        if job is None or not (self.sitemaps.asks_for_robots and is_page_of_seed(job)):
            return []
        if not self._is_within_depth(job.depth, job):
            return []
        origins = dict.fromkeys(LinkBase.parse(url, "utf-8").origin for url in (job.url, found_at or job.url))
        # with a depth, since Scrapy gives none to what an errback returns
        meta = {meta_keys.SITEMAP: {"robots": True}, "depth": job.depth + 1}
        urls = self._new_pages([origin + ROBOTS for origin in origins], job)
        return [quick_request(url, verbatim=is_safe(url), meta={**meta}) for url in urls]

    async def _read_sitemap(
        self, response: Response, result: Result, listed: Mapping[str, Any]
    ) -> tuple[Sitemap, int | None]:
        """A small one in turns, a large or packed one in a thread; and the level of what it names."""
        assert response.request is not None
        mode = self.sitemaps.mode
        if is_robots(listed) or (mode == "robots" and is_robots_url(response.request.url)):
            return Sitemap(sitemaps_of_robots(response.body) if mode == "robots" else []), 0
        said = content_type_of(response)
        kind = None if mode == "off" else kind_of(response.body, media_type(said))
        if kind is None:
            if listed and is_listing(listed):
                result.add_note("named as a sitemap, but is none")
            return Sitemap([]), None
        level = level_below(kind, listed)
        if level is not None and level > DEEPEST_INDEX:
            reason = f"sitemap not read: more than {DEEPEST_INDEX} indexes lead to each other"
            return Sitemap([], refusal=reason), None
        since = self.sitemaps.since_when()
        steps = read_sitemap(response.body, kind, response.url, since=since, content_type=said)
        found = await (asyncio.to_thread(run_through, steps) if is_large(response) else self._turns.run(steps))
        result.links_out = len(found.entries)  # and the fields of page_notes are written, also without one
        return found, level

    async def _follow_found(self, links: Iterable[list[str]], anchor: str, job: Job | None) -> list[Request]:
        """A request for each link to follow; others have the event loop between the slices."""
        return [*chain(*await self._turns.take([*self._requests(some, anchor, job)] for some in links))]

    def _requests(
        self,
        urls: Iterable[str],
        anchor: str,
        job: Job | None,
        listed: Mapping[str, dict[str, Any]] | None = None,  # by URL: what a sitemap says of them
        is_flat: bool = False,  # they are as deep as this page
        source: Source | None = None,  # whose rules say what is followed
    ) -> Iterator[Request]:
        for url in self._new_pages(in_reach(source, self._scope_of(job), anchor, urls), job):
            meta: dict[str, Any] = {}
            if listed is not None:
                meta = {meta_keys.SITEMAP: listed[url], meta_keys.SAME_DEPTH: is_flat}
            yield quick_request(url, verbatim=is_safe(url), meta=meta)

    def _new_pages(self, links: Iterable[str], job: Job | None) -> Iterable[str]:
        """Without those that the dupefilter would filter, if it can say so before there are requests."""
        dupefilter = part_of(self.crawler, SeenDupeFilter)
        return links if job is None or dupefilter is None else dupefilter.new_pages(links, job)

    def _wants_links(self, response: Response, job: Job | None, listed: Mapping[str, Any]) -> bool:
        assert response.request is not None
        depth = response.request.meta.get("depth", 0)
        is_file = bool(listed) and is_listing(listed)
        if job is not None and job.seed.not_extract and not is_file:  # files are of the host, not of the page
            return False
        said = () if self.follow_nofollow else header_texts(response, b"X-Robots-Tag")
        if not 200 <= response.status < 300 or (said and forbids(directives(said), "nofollow")):
            return False
        deep = depth - (depth > 0 and is_file)  # what a file names is as deep as itself
        return self._is_within_depth(deep, job)

    def _is_within_depth(self, depth: int, job: Job | None) -> bool:
        """Whether links of a page that is so deep may be followed."""
        rules = self._rules_of(job)
        limit = self.depth_limit or None if rules is None or rules.depth is None else rules.depth
        return limit is None or depth < limit

    def _rules_of(self, job: Job | None) -> TaskRules | None:
        return None if job is None or job.seed.task_id is None else rules_of(self.crawler, job)

    def leads_out(self, redirected: Request) -> bool:
        """Whether a file that an index or a robots.txt named is elsewhere, out of the link scope."""
        job = job_of(redirected)
        if job is None or not job.entry.scope_host or "level" not in listed_in(redirected, job):
            return False
        return not in_scope(self._scope_of(job), job.entry.scope_host, [redirected.url])

    def _scope_of(self, job: Job | None) -> str:
        rules = self._rules_of(job)
        return self.link_scope if rules is None else rules.scope or self.link_scope

    def _result(self, request: Request, job: Job | None) -> Result:
        result = Result(url_id=page_of(request).url_id if job is None else job.url_id)
        if job is None:
            result.url, result.method = request.url, request.method
            describe_host(result, host_of(request.url))
        else:
            describe_job(result, job)
            if listed := listed_in(request, job):
                result.meta = {**result.meta, "sitemap": listed}
            elif job.parent is not None and is_of_page_alone(job.seed, result.meta):
                result.meta = {name: said for name, said in result.meta.items() if name != "sitemap"}
        self._describe_attempt(result, request)
        return result

    def _describe_attempt(self, result: Result, request: Request) -> None:
        describe_request(result, request, self.name)
        meta = request.meta
        if meta_keys.ROUTE in meta:
            result.proxy = proxied_by(request)
        if meta_keys.CHECKED in meta:
            describe_outcome(result, meta[meta_keys.CHECKED])

    @staticmethod
    def _describe_answer(result: Result, response: Response, page: Page) -> None:
        describe_response(result, response, page)
        describe_check(result, response)


def to_topic(request: Request, topic: str, *, not_extract: bool = False) -> Request:
    """The same request, to become a seed of another topic instead of being crawled here.

    The seed of the page is complete when that is stored there. With `not_extract` no links are followed from
    it. Raises ConfigError for what is no name of a topic.
    """
    options.topic({"to_topic": topic}, "to_topic")
    return request.replace(meta={**request.meta, meta_keys.TO_TOPIC: topic, meta_keys.LEAF: not_extract})


def _anchor_host(response: Response, job: Job | None) -> str:
    """The host that the link scope is about: where the seed's own page was found.

    Not the page at hand's: a link that redirects elsewhere would carry the crawl there.
    """
    host = host_of(response.url)
    if job is None:
        return host
    if job.parent is None:
        job.entry.found_at(host)
    return job.entry.scope_host or host
