"""`scrapy urls explain`: what would happen to a URL, and by which rule."""

from __future__ import annotations

import argparse
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from site_spider import options
from site_spider.commands.output import Column, add_format_option, number, print_json, print_table
from site_spider.commands.site_command import EXIT_FAILED, SiteCommand
from site_spider.dupefilter.remote import usual_form
from site_spider.errors import SeedError
from site_spider.page.directives import absolute
from site_spider.page.links import LinkBase
from site_spider.page.url import SCOPES, canonical_url, check_url, host_of, pattern_of, same_scope, url_id
from site_spider.seed.topics import CrawlTopics
from site_spider.service import config as parts
from site_spider.sources.library import SourceFolder
from site_spider.sources.model import Source
from site_spider.sources.url_rules import UrlRulesFile
from site_spider.tasks.board import Board
from site_spider.tasks.declaration import BadTask, TaskRules
from site_spider.tasks.orders import TaskDesk

_COLUMNS = (Column("CHECK"), Column("SEED"), Column("LINK"), Column("SAYS", shrinks=True))
_WORDS = {True: "yes", False: "no", None: "-"}
_RULES = {None: "no rule refuses it", "allow": "no list allows it"}  # others are named as they are counted


class UrlCheck(NamedTuple):
    """Whether a seed, and a link, may pass; None: it is not about these, or only a running process knows."""

    name: str
    seed: bool | None
    link: bool | None
    says: str | None


class Command(SiteCommand):
    """Reads settings, rules and tasks; fetches nothing, and looks up the host alone."""

    max_arguments = 2
    usage = "explain URL [options]"
    summary = "Show what would happen to a URL, and why"
    description = (
        "Shows what would happen to a URL as a seed and as a link: what is wrong with it, what it is "
        "compared as, and the rule by which it is not fetched. Whether a page was fetched before, or is in a "
        "trap, is known to the running processes alone. The exit code is 1 if a link "
        "to it would not be followed."
    )
    examples = """
        scrapy urls explain 'https://shop.example/p?utm_source=x'
        scrapy urls explain https://shop.example/calendar/2031/ --task-id spring --format json
        scrapy urls explain https://other.example/ --from https://shop.example/
    """

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        parser.add_argument("--task-id", metavar="ID", help="as a URL of this task")
        parser.add_argument("--from", dest="seed", metavar="URL", help="of the seed on whose page the link is")
        parser.add_argument("--depth", metavar="N", type=number, default=1, help="links from the seed to it (1)")
        add_format_option(parser)

    def work(self, opts: argparse.Namespace) -> None:
        if len(opts.args) != 2 or opts.args[0] != "explain":
            self.refuse("use it as: scrapy urls explain URL")
        try:
            opts.seed = None if opts.seed is None else check_url(opts.seed)
        except SeedError as error:
            self.refuse(f"--from: {error.reason}")
        rules, board = self._task(opts.task_id)
        checks = list(self._checks(opts.args[1], rules, board, opts))
        refused = {
            kind: next((check.name for check in checks if getattr(check, kind) is False), None)
            for kind in ("seed", "link")
        }
        if opts.format == "json":
            said = {"url": opts.args[1], "task_id": opts.task_id, "refused_by": refused}
            print_json({**said, "checks": [check._asdict() for check in checks]})
        else:
            print_table(_COLUMNS, [(one.name, _WORDS[one.seed], _WORDS[one.link], one.says) for one in checks])
        if refused["link"] is not None:
            self.exitcode = EXIT_FAILED

    def _task(self, task_id: str | None) -> tuple[TaskRules | None, Board]:
        if task_id is None:
            return None, Board()
        with closing(parts.seed_log(self.options)) as log:
            desk = TaskDesk(log, CrawlTopics.of(self.options))
            if (task := desk.board.task(task_id)) is None:
                raise BadTask(f"nobody has declared the task {task_id!r}; leave out --task-id")
            return TaskRules(task), desk.board

    def _checks(self, url: str, rules: TaskRules | None, board: Board, opts: argparse.Namespace) -> Iterator[UrlCheck]:
        link = absolute(url, LinkBase.parse("", "utf-8"))  # as links are found
        by_task = options.choice(self.options, "SITE_DUPEFILTER_SCOPE", ("task", "group")) == "task"
        scoped = opts.task_id if by_task else None
        seed = None
        try:
            seed, said = check_url(url), f"url_id {url_id(check_url(url), scoped)}"
        except (SeedError, ValueError) as error:
            said = getattr(error, "reason", str(error))
        yield UrlCheck("url", seed is not None, link is not None, said)
        if not (url := link or seed or ""):
            return
        form = usual_form(self.options) if rules is None or rules.task.drop_params is None else rules.form
        canonical = canonical_url(url)
        yield UrlCheck("compared as", None, None, canonical if form is None else form.of(canonical))
        rule = UrlRulesFile.open(self.options).rules.refusal(url)
        yield UrlCheck("rules", None, rule is None, _RULES.get(rule, rule))
        yield from self._limits(url, rules, opts.depth)
        if rules is not None:
            yield self._of_task(url, seed, rules, board, opts)
        source = None if opts.seed is None else self._source(opts.seed, rules)
        if source is not None and source.follow is not None:
            number = next((number for number, rule in enumerate(source.follow) if rule.takes(url)), None)
            said = "no rule of follow" if number is None else f"follow.{number}"
            if number is not None and source.follow[number].css is not None:
                said += f", where it stands in {source.follow[number].css}"
            yield UrlCheck("source", None, number is not None, f"{source.name}: {said}")
        yield self._scope(url, rules, opts.seed, source)
        yield self._address(host_of(url))
        if options.boolean(self.options, "ROBOTSTXT_OBEY"):
            yield UrlCheck("robots.txt", None, None, "is obeyed; it was not asked for")
        if (pattern := pattern_of(url)) is not None:
            count = 0 if opts.task_id is None else board.used(opts.task_id).traps.get(pattern, 0)
            so_far = f"; links of the task that were not followed: {count}" if count else ""
            yield UrlCheck("trap", None, None, f"known to processes alone; its pattern: {pattern}{so_far}")

    def _of_task(
        self, url: str, seed: str | None, rules: TaskRules, board: Board, opts: argparse.Namespace
    ) -> UrlCheck:
        phase, most = board.phase(opts.task_id), rules.task.max_pages_host
        if phase.is_over:
            return UrlCheck("task", False, False, f"the task is {phase.name}")
        said = None if rules.takes_link(url, opts.depth) else "allow"
        if not rules.takes_seed(url):
            said = "deny"
        elif rules.depth is not None and opts.depth > rules.depth:
            said = "depth"
        elif said is None and most is not None and board.hosts(opts.task_id).get(host_of(url), 0) >= most:
            said = "max_pages_host"
        may_begin = seed is None or rules.takes_seed(seed)
        return UrlCheck("task", may_begin, said is None, said or f"the task is {phase.name}")

    def _limits(self, url: str, rules: TaskRules | None, depth: int) -> Iterator[UrlCheck]:
        for name, count, setting in (("length", len(url), "URLLENGTH_LIMIT"), ("depth", depth, "DEPTH_LIMIT")):
            most = options.integer(self.options, setting)
            if most and not (name == "depth" and rules is not None and rules.depth is not None):
                yield UrlCheck(name, None, count <= most, f"{count}; {setting} is {most}")

    def _source(self, page: str, rules: TaskRules | None) -> Source | None:
        folder = Path(options.text(self.options, "SITE_SOURCES_DIR", required=True))
        library = SourceFolder.open(folder, must_exist=False).library
        named = None if rules is None else rules.task.source
        return library.match(page, host_of(page)) if named is None else library.named(named)

    def _scope(self, url: str, rules: TaskRules | None, seed: str | None, source: Source | None) -> UrlCheck:
        usual = options.choice(self.options, "SITE_LINK_SCOPE", SCOPES)
        scope = usual if rules is None else rules.scope or usual
        if seed is None:
            return UrlCheck("scope", None, None, f"{scope}; --from names a seed")
        if source is not None and source.follow is not None and source.match.has_host(host_of(url)):
            return UrlCheck("scope", None, True, f"a host of the source {source.name}")
        is_near = same_scope(scope, host_of(seed), host_of(url))
        return UrlCheck("scope", None, is_near, f"{scope} of {host_of(seed)}")

    def _address(self, host: str) -> UrlCheck:
        try:
            found = sorted({str(entry[4][0]) for entry in socket.getaddrinfo(host, None)})
        except OSError as error:
            return UrlCheck("address", None, None, f"{host} has none now: {error}")
        may_reach = parts.guard_of(self.options)
        is_open = any(may_reach(host, address) for address in found)
        said: Any = ", ".join(found[:5]) + ("" if is_open else ": private, and SITE_ALLOW_PRIVATE_HOSTS is false")
        return UrlCheck("address", is_open, is_open, said)
