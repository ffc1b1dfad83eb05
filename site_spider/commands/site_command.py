"""The base of the commands: settings as a crawl sees them, errors in one line."""

from __future__ import annotations

import argparse
import io
import sys
import textwrap
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from errno import EDQUOT, EFBIG, EIO, ENOSPC
from importlib import import_module
from typing import ClassVar, NoReturn

from scrapy import Spider
from scrapy.commands import ScrapyCommand, ScrapyHelpFormatter
from scrapy.exceptions import UsageError
from scrapy.settings import BaseSettings, Settings
from scrapy.spiderloader import get_spider_loader
from scrapy.utils.log import configure_logging

from site_spider import options
from site_spider.commands.output import complain, escape_logs_and_tracebacks, takes_no_more
from site_spider.engine.scrapy_parts import take_no_seeds
from site_spider.errors import EXIT_CONFIG, ConfigError, SiteSpiderError
from site_spider.installation import left_out
from site_spider.page.url import host_of
from site_spider.redaction import Redaction, redact_logs
from site_spider.seed.topics import Tiers
from site_spider.service import environment
from site_spider.service.environment import apply_environment
from site_spider.service.settings_checks import check_names

DEFAULT_SPIDER = "crawl_spider"
USUAL_SPIDER = f"{DEFAULT_SPIDER}, else the only one that takes seeds"
EXIT_FAILED = 1
EXIT_USAGE = 2
_NO_SETTINGS = f'run it in a project whose settings.py has ADDONS = {{"{environment.ADDON_PATH}": 300}}'
_DISK = frozenset({ENOSPC, EDQUOT, EFBIG, EIO})  # of the output: files and logs have errors of their own
EXIT_INTERRUPTED = 130  # as shells say it: 128 + SIGINT


class SiteCommand(ScrapyCommand):
    """Runs `work` with the precedence of a crawl: `-s` > environment > custom_settings > settings.py."""

    # Scrapy makes a command of every subclass that it finds in the module it was defined in.
    __module__ = "site_spider.commands"

    requires_project = True
    requires_crawler_process = False
    default_settings: ClassVar[dict[str, object]] = {"LOG_FORMAT": "%(levelname)s: %(message)s"}
    max_arguments = 0
    takes_files = False  # as its arguments
    usage = "[options]"  # behind the name of the command
    summary = ""  # of `scrapy --help`
    description = ""  # of --help
    spider_help = "work for this spider"
    examples = ""  # lines at the end of --help
    spider_class: type[Spider] = Spider
    _redaction = Redaction(())
    _of_project: Settings | None = None  # the settings before those of a spider

    @property
    def name(self) -> str:
        """What people type after `scrapy`."""
        return self.__module__.rpartition(".")[2]

    @property
    def options(self) -> Settings:
        """The settings, which Scrapy has set by the time a command runs."""
        assert self.settings is not None
        return self.settings

    def syntax(self) -> str:
        return self.usage

    def short_desc(self) -> str:
        return self.summary

    def long_desc(self) -> str:
        return self.description

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        super().add_options(parser)
        # a file's name may be of any bytes
        kinds = {None: _utf8, str: _utf8, "file": str, "host": _host, "name": _name, "topic": checked(_topic)}
        for kind, read in kinds.items():
            parser.register("type", kind, read)
        said = f"{self.spider_help}, with the settings of its custom_settings (default: {USUAL_SPIDER})"
        parser.add_argument("--spider", metavar="NAME", type="name", help=said)
        parser.formatter_class = _HelpFormatter
        if self.examples:
            parser.epilog = "Examples:\n" + textwrap.indent(textwrap.dedent(self.examples).strip(), "  ")

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        """As Scrapy asks; refuses what is not known, adds custom_settings and the environment."""
        escape_logs_and_tracebacks()
        _refuse_unknown(args, self.max_arguments)
        odd = [] if self.takes_files else [arg for arg in args if not _is_utf8(arg)]
        if odd:
            raise UsageError(f"{odd[0]!r} is not UTF-8", print_help=False)
        super().process_options(args, opts)
        if not opts.loglevel:
            self.options.set("LOG_LEVEL", "WARNING", priority="spider")
        if environment.has_addon(self.options):
            environment.apply_our_settings(self.options)
        if not environment.has_our_settings(self.options):
            raise UsageError(_NO_SETTINGS, print_help=False)
        self._of_project = self.options.copy()
        apply_environment(self.options)  # which may name modules of spiders
        named = None if opts.spider is None else loaded_spider(self.options, opts.spider)
        self.spider_class = named or usual_spider(self.options)
        self.spider_class.update_settings(self.options)
        apply_environment(self.options)

    def topics_of_spiders(self) -> dict[str, Sequence[str]]:
        """The seed topics of each spider that takes seeds, by its name; none of one whose settings are wrong."""
        found: dict[str, Sequence[str]] = {}
        for spider in _takers(self.options):
            settings = (self._of_project or self.options).copy()
            spider.update_settings(settings)
            with suppress(ConfigError):
                found[spider.name] = Tiers.of(settings).topics
        return found

    def run(self, args: list[str], opts: argparse.Namespace) -> None:
        """Work, and say an error in one line on stderr (exit code 1; 78 for a wrong setting)."""
        self._redaction = redact_logs(self.options)
        if isinstance(sys.stdout, io.TextIOWrapper):  # whatever the locale, and half a surrogate pair
            sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
        try:
            check_names(self.options)
            configure_logging(self.options)
            opts.args = args
            self.work(opts)
            sys.stdout.flush()
        except SiteSpiderError as error:
            self.complain(str(error))
            self.exitcode = EXIT_CONFIG if isinstance(error, ConfigError) else EXIT_FAILED
        except KeyboardInterrupt:
            self.exitcode = EXIT_INTERRUPTED
        except OSError as error:
            if error.errno not in _DISK and not isinstance(error, BrokenPipeError):
                raise
            takes_no_more(sys.stdout)
            if error.errno in _DISK:  # else whoever read the output has seen enough
                try:
                    self.complain(f"the output cannot be written: {error.strerror}")
                except OSError:
                    takes_no_more(sys.stderr)
            self.exitcode = EXIT_FAILED

    @abstractmethod
    def work(self, opts: argparse.Namespace) -> None:
        """What the command does; `opts.args` are its arguments. Raises SiteSpiderError."""

    def complain(self, message: str) -> None:
        complain(self._redaction(f"scrapy {self.name}: {message}"))

    def refuse_of_others(self, verb: str, only_for: Mapping[str, str], opts: argparse.Namespace) -> None:
        """Options, None by default, that belong to another verb than this: by name, which one."""
        for option, only in only_for.items():
            if only != verb and getattr(opts, option) is not None:
                self.refuse(f"--{option.replace('_', '-')} is for: scrapy {self.name} {only}")

    def refuse(self, message: str) -> NoReturn:
        """End with a line about how the command is used, exit code 2."""
        self.complain(message)
        sys.exit(EXIT_USAGE)


def loaded_spider(settings: BaseSettings, name: str) -> type[Spider]:
    """The spider of this name. Raises UsageError."""
    loader = get_spider_loader(settings)
    if name not in (known := loader.list()):
        hint = f". {older}" if (older := left_out()) else ""
        raise UsageError(f"no spider {name!r}; there is {', '.join(known)}{hint}", print_help=False)
    return loader.load(name)


def usual_spider(settings: BaseSettings) -> type[Spider]:
    """Whose custom_settings count: crawl_spider's, else those of the only one that takes seeds."""
    takers = _takers(settings)
    found = [spider for spider in takers if spider.name == DEFAULT_SPIDER] or takers
    return found[0] if len(found) == 1 else Spider


def _takers(settings: BaseSettings) -> list[type[Spider]]:
    loader = get_spider_loader(settings)
    spiders = map(loader.load, loader.list())
    return [spider for spider in spiders if getattr(spider, "takes_seeds", False)]


class _HelpFormatter(ScrapyHelpFormatter):
    """Leaves the lines of the examples, and those of the options, as they are."""

    def format_part_strings(self, part_strings: list[str]) -> list[str]:
        # Scrapy takes every line that ends in a colon for a heading, also one within an option's help.
        shielded = [part.replace(":\n", ":\0\n") if part[:1] == " " else part for part in part_strings]
        return [part.replace("\0", "") for part in super().format_part_strings(shielded)]

    def _split_lines(self, text: str, width: int) -> list[str]:
        return [f"{line}\0" if line.endswith(":") else line for line in super()._split_lines(text, width)]

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("Examples:"):
            return text
        return super()._fill_text(text, width, indent)


def _refuse_unknown(args: list[str], most: int) -> None:
    # Scrapy takes an unknown option for an argument: a mistyped one would be ignored silently.
    upto = args.index("--") if "--" in args else len(args)
    unknown = [arg for arg in args[:upto] if arg.startswith("-") and arg != "-"]
    if unknown:
        hint = f"unknown option {unknown[0]}; an argument that begins with - stands behind --"
        raise UsageError(hint, print_help=False)
    del args[upto : upto + 1]
    if len(args) > most:
        raise UsageError(f"unexpected argument {args[most]!r}", print_help=False)


# --- What Scrapy's commands for trying things out share here: they touch nothing of the crawl ------------
# They take settings from custom_settings and the environment as a crawl does, but join no group, commit
# nothing and write to no sink, also when they run a spider that takes seeds.


class Trial(ScrapyCommand):
    """As Scrapy's, without touching the crawl."""

    __module__ = "site_spider.commands"  # as above

    def process_options(self, args: list[str], opts: argparse.Namespace) -> None:
        escape_logs_and_tracebacks()
        take_no_seeds()
        super().process_options(args, opts)
        assert self.settings is not None
        name = getattr(opts, "spider", None)
        loader = get_spider_loader(self.settings)
        if name in loader.list():
            loader.load(name).update_settings(self.settings)
        apply_environment(self.settings)
        redaction = redact_logs(self.settings)
        try:
            if environment.has_our_settings(self.settings):
                check_names(self.settings)
        except ConfigError as error:
            complain(redaction(f"scrapy {self.__module__.rpartition('.')[2]}: {error}"))
            sys.exit(EXIT_CONFIG)


def trial(module: str) -> type[ScrapyCommand]:
    """The class of a module that is named after a command of Scrapy."""
    scrapys = import_module(f"scrapy.commands.{module.rpartition('.')[2]}").Command
    return type("Command", (Trial, scrapys), {"__module__": module, "__doc__": Trial.__doc__})


def checked(read: Callable[[object], object]) -> Callable[[str], object]:
    """As a type of argparse, which names the option."""

    def value_of(text: str) -> object:
        try:
            return read(text)
        except SiteSpiderError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return value_of


def _is_utf8(text: str) -> bool:
    return text == text.encode("utf-8", "replace").decode()


def _utf8(text: str) -> str:
    if not _is_utf8(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not UTF-8")
    return text


def _name(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("the name is empty; leave the option out for the default")
    return _utf8(text)


def _host(text: str) -> str:
    """In the spelling that documents have; as it is where it is none."""
    return host_of(f"http://{_utf8(text)}/") or text.lower()


def _topic(text: object) -> str:
    return options.topic({"the topic": text}, "the topic")
