"""Refuses settings before they are used: names that nobody reads, and values of no use."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from traceback import walk_tb

from scrapy.settings import BaseSettings, default_settings
from scrapy.utils.misc import load_object

from site_spider import installation, options
from site_spider import settings as ours
from site_spider.engine.scrapy_parts import load_class
from site_spider.errors import ConfigError
from site_spider.service.environment import COMPONENTS, FILES, SECRETS, content_of, files_of, unquoted

# --- names: a mistyped one would be without effect, silently ---------------------------------------------
# Known are the names with a default, here or in the settings file of the project at hand, and those that a
# class of somebody else's declares in `setting_names`. Other names than ours are refused when they are
# nearly one of Scrapy's, and have such a value: other parts of a project have settings of their own.

_PREFIX = "SITE_"
_OF_SERVERS = "SITE_SERVERS_"  # task_shell/servers.sh reads these
_FILE = "SCRAPY_SETTINGS_MODULE"  # the variable that Scrapy keeps the project's settings file in
_LIKENESS = 0.6  # of two names, from 0 to 1
_NEARLY = 0.9  # the same: a letter that lacks or is too many
_LONG = 12  # characters: a shorter variable of the environment may be another program's
_SCRAPYS = frozenset(name for name in dir(default_settings) if name.isupper())
_UNUSUAL = frozenset({"CONCURRENT_REQUESTS_PER_IP"})  # Scrapy reads them, and has no default
_GONE = {
    "SITE_TRACE_EVERY": "nothing is sent over OTLP: let a collector scrape SITE_METRICS_ADDRESS",
    "SITE_KAFKA_GROUP_PROTOCOL": "members speak the classic protocol. Remove it, and stop a group of another "
    "protocol as a whole before the first of these processes starts",
}
_OF_FILES = ("DIR", "_FILE", "_RULES", "_STORE")  # whose names may be of any bytes
_CLASSES = ("SITE_SEED_LOG_CLASSES", "SITE_SINK_CLASSES", "SITE_READER_CLASSES", "SITE_DUPEFILTER_CLASSES")


def check_names(settings: BaseSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError that names every unknown one, given in whatever way, and the nearest known.

    Also for a value of another type than the default's, and for a file with a secret that cannot be read.
    """
    check_log_settings(settings)
    for name, path in files_of(settings, environ):
        content_of(name, path)
        if environ.get(name):
            raise ConfigError(f"{name} and {name}_FILE are both in the environment; keep one of them.")
    given = {name for name in environ if not name.startswith(_OF_SERVERS)} | set(settings)
    unknown = {name for name in given if name.startswith(_PREFIX)} - _with_defaults() - FILES
    if unknown:
        unknown -= set(_declared(settings))
    if unknown:
        raise ConfigError(" ".join(map(_refusal, sorted(unknown))) + " docs/settings.md has all of them.")
    if misspelt := dict(_misspelt(settings, environ)):
        raise ConfigError(" ".join(f"{name} is not a setting: did you mean {near}?" for name, near in misspelt.items()))
    _check_texts(settings)
    _check_types(settings, environ)


def _check_texts(settings: BaseSettings) -> None:
    """Of a variable that is no UTF-8 Python makes what no document, header or statement of SQL takes."""
    for name in sorted(set(settings) - set(SECRETS)):
        if isinstance(value := settings[name], str) and not name.endswith(_OF_FILES):
            try:
                value.encode()
            except UnicodeEncodeError:
                raise ConfigError(f"{name} is {value!r}, but must be UTF-8.") from None


def _check_types(settings: BaseSettings, environ: Mapping[str, str]) -> None:
    for name in set(settings) & set(environ):
        if isinstance(settings[name], BaseSettings):
            options.mapping({name: unquoted(environ[name])}, name)
    for name, default in vars(ours).items():  # also of what is not used now
        if isinstance(default, dict):
            _check_orders(name, options.mapping(settings, name))
        elif isinstance(default, bool) and name.startswith(_PREFIX) and name in settings:
            options.boolean(settings, name)
        elif isinstance(default, int | float) and name.startswith(_PREFIX) and name in settings:
            _check(settings, name, default)


def _check_orders(name: str, parts: Mapping[str, object]) -> None:
    for part, order in parts.items() if name in COMPONENTS else ():
        if order is not None and not isinstance(order, int | float):
            raise ConfigError(
                f"{name} has {order!r} for {part}, but must have a number, or None (null) to take it out."
            )


def _misspelt(settings: BaseSettings, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Names that are nearly one of Scrapy's, and that."""
    declared = set(_declared(settings)) | _UNUSUAL
    long = {name: value for name, value in environ.items() if len(name) >= _LONG and name not in settings}
    for name, value in sorted({**long, **{name: settings[name] for name in settings}}.items()):
        if not name.isupper() or name in _SCRAPYS or name in declared or name.startswith(_PREFIX):
            continue
        near = _nearest(name)
        if near is not None and _fits(value, getattr(default_settings, near)):
            yield name, near


@cache
def _nearest(name: str) -> str | None:
    """Of Scrapy's; each name takes 2 ms."""
    return next(iter(get_close_matches(name, _SCRAPYS, n=1, cutoff=_NEARLY)), None)


def _fits(value: object, default: object) -> bool:
    """Whether somebody may have meant it for a setting with this default: USER_AGENTS is a list of others."""
    if isinstance(value, str):
        is_number = value.replace(".", "", 1).isdecimal() or value.lower() in {"true", "false"}
        return is_number or not isinstance(default, bool | int | float)
    return default is None or _kind(value) is _kind(default)


def _kind(value: object) -> type:
    """A number, a text or neither."""
    if isinstance(value, int | float):  # true and false as well
        return float
    return str if isinstance(value, str) else object


def _with_defaults() -> set[str]:
    project = os.environ.get(_FILE)
    modules = [ours] if project is None else [ours, import_module(project)]
    return {name for module in modules for name in vars(module) if name.startswith(_PREFIX)}


def _declared(settings: BaseSettings) -> Iterator[str]:
    paths = {*options.names(settings, "SITE_SINKS"), options.text(settings, "SITE_DUPEFILTER")}
    for name in _CLASSES:
        paths.update(map(str, options.mapping(settings, name).values()))
    for path in paths:
        if "." in path and not path.startswith("site_spider."):
            with suppress(ImportError, NameError, ValueError, TypeError):  # whoever needs the class says so
                yield from getattr(load_object(path), "setting_names", ())


def _refusal(name: str) -> str:
    if name in _GONE:
        return f"{name} is gone: {_GONE[name]}."
    near = _meant(name.upper().removeprefix(_PREFIX))
    return f"{name} is not a setting" + (f": did you mean {near}?" if near else ".")


def _meant(bare: str) -> str | None:
    """The setting that a name without the prefix may be meant for; the prefix would make any two alike."""
    known = {one.removeprefix(_PREFIX): one for one in _with_defaults()}
    longer = [one for one in known if one.startswith(f"{bare}_") or one.endswith(f"_{bare}")]  # without its unit, say
    if len(longer) == 1:
        return known[longer[0]]
    if near := _nearest(bare):
        return near
    return next((known[one] for one in get_close_matches(bare, known, n=1, cutoff=_LIKENESS)), None)


# --- scrapy settings: checks Scrapy's own settings before Scrapy reads them ------------------------------

_MAY_BE_NEGATIVE = frozenset({"DEPTH_PRIORITY", "REDIRECT_PRIORITY_ADJUST", "RETRY_PRIORITY_ADJUST"})
_LOWEST = -(10**9)
_REACTOR = default_settings.TWISTED_REACTOR
_AT_LEAST_ONE = frozenset({  # or nothing is ever fetched, or taken of a page
    "CONCURRENT_REQUESTS", "CONCURRENT_REQUESTS_PER_DOMAIN", "CONCURRENT_ITEMS", "REACTOR_THREADPOOL_MAXSIZE",
})  # fmt: skip
_SINGLE_CLASSES = (
    *("STATS_CLASS", "LOG_FORMATTER", "REQUEST_FINGERPRINTER_CLASS", "SCHEDULER", "DUPEFILTER_CLASS"),
    *("DOWNLOADER", "ITEM_PROCESSOR"),
)


def check_scrapy_settings(settings: BaseSettings) -> None:
    """Raise ConfigError for the first number, or true or false, that is none; and for another Scrapy."""
    installation.check()
    if settings.get("SITE_SEED_TOPIC") is None:
        raise ConfigError(
            "The settings of site_spider are missing in this project: add "
            'ADDONS = {"site_spider.Addon": 300} to its settings.py.'
        )
    for name in sorted(_SCRAPYS):
        default = getattr(default_settings, name)
        # only these are read: reading a deprecated setting warns
        if isinstance(default, bool | int | float) and settings.get(name) is not None:
            _check(settings, name, default)
    if (reactor := str(settings.get("TWISTED_REACTOR"))).startswith("twisted.") and reactor != _REACTOR:
        raise ConfigError(f"TWISTED_REACTOR is {reactor!r}, but must be {_REACTOR!r}, Scrapy's default. Leave it out.")
    for code in options.names(settings, "RETRY_HTTP_CODES"):
        options.integer({"RETRY_HTTP_CODES": code}, "RETRY_HTTP_CODES", 100, 599)
    for name in settings.getlist("RETRY_EXCEPTIONS"):
        if not isinstance(load_class("RETRY_EXCEPTIONS", name), type):
            raise ConfigError(f"RETRY_EXCEPTIONS names {name!r}, but must name classes of exceptions.")
    for name in ("ROBOTSTXT_PARSER", "TWISTED_DNS_RESOLVER"):
        load_class(name, settings[name])


def not_there(settings: BaseSettings) -> ConfigError | None:
    """The first setting with a class that is not there: Scrapy's own error does not say which setting names it.

    None where something else is wrong. To be asked after a start has failed: a class may import the reactor.
    """
    with suppress(Exception):  # a module that cannot be read to its end has the traceback of Scrapy's error
        named = [(name, settings[name]) for name in _SINGLE_CLASSES]
        named += [(name, part) for name in COMPONENTS for part, order in settings[name].items() if order is not None]
        for name, path in named:
            try:
                load_class(name, path)
            except ConfigError as error:
                return error if _is_of_path(error.__cause__ or error) else None
    return None


def _is_of_path(error: BaseException) -> bool:
    """Whether nothing stands where the path leads to, rather than something that fails."""
    *_, (frame, _) = walk_tb(error.__traceback__)
    return str(frame.f_globals.get("__name__")).startswith(("importlib", "scrapy.utils.misc"))


def check_log_settings(settings: BaseSettings) -> None:
    """Raise ConfigError for what Scrapy could not begin a log with."""
    _check(settings, "LOG_ENABLED", default=True)
    level, levels = settings.get("LOG_LEVEL"), logging.getLevelNamesMapping()
    if isinstance(level, str) and level not in levels:
        raise ConfigError(f"LOG_LEVEL is {level!r}, but must be one of: {', '.join(levels)}.")
    try:
        logging.Formatter(form := settings.get("LOG_FORMAT"))
    except ValueError:
        raise ConfigError(f"LOG_FORMAT is {form!r}, but must be as %(levelname)s: %(message)s.") from None
    file = Path(settings.get("LOG_FILE") or os.devnull)
    if not os.access(file if os.access(file, os.F_OK) else file.parent, os.W_OK) or file.is_dir():
        raise ConfigError(f"LOG_FILE is '{file}', which this user cannot write: make its folder, or name another file.")


def _check(settings: BaseSettings, name: str, default: float) -> None:
    if isinstance(default, bool) or name == "TELNETCONSOLE_ENABLED":  # which is 1 by default
        try:
            settings.getbool(name)
        except ValueError:
            raise ConfigError(f"{name} is {settings.get(name)!r}, but Scrapy takes only true and false.") from None
        return
    lowest = _LOWEST if name in _MAY_BE_NEGATIVE else int(name in _AT_LEAST_ONE)
    if isinstance(default, int) and not name.endswith(("_TIMEOUT", "_DELAY", "_INTERVAL", "_SECONDS")):
        options.integer(settings, name, lowest)
    else:
        options.seconds(settings, name, lowest)
