"""The settings of a crawl: from environment variables, files and the add-on, checked before they are used."""

from __future__ import annotations

import ast
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, Self

from scrapy.crawler import Crawler
from scrapy.exceptions import NotConfigured
from scrapy.settings import SETTINGS_PRIORITIES, BaseSettings, default_settings
from scrapy.utils.misc import load_object
from scrapy.utils.reactor import is_reactor_installed

from site_spider import options, resources
from site_spider import settings as ours
from site_spider.engine.scrapy_parts import takes_seeds
from site_spider.errors import ConfigError
from site_spider.secrets import Redaction, secrets_of

# --- Takes settings that can hold a secret from files, as Docker and Kubernetes hand secrets out ---------
# `NAME_FILE` is the path of a file with what `NAME` would be, as an environment variable or a setting.

SECRETS = (
    "SITE_KAFKA_OPTIONS",
    "SITE_ELASTICSEARCH_HOSTS",
    "SITE_ELASTICSEARCH_OPTIONS",
    "SITE_REDIS_URL",
    "SITE_PROXIES",
    "SITE_SPILL_KEY",
    "SITE_CONSOLE_TOKEN",
    "SITE_NOTIFY_URL",
)
FILES = frozenset(f"{name}_FILE" for name in SECRETS)

_MOST_BYTES = 1_000_000


def _files(settings: BaseSettings, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Of the settings that are given so, the names and the paths."""
    for name in SECRETS:
        if path := str(settings.get(f"{name}_FILE") or environ.get(f"{name}_FILE") or "").strip():
            yield name, path


def _content(name: str, path: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
        text = content.decode("utf-8-sig").strip()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ConfigError(f"{name}_FILE names {path!r}, which cannot be read: {reason}.") from None
    if not text or len(content) > _MOST_BYTES:
        reason = "is empty" if not text else f"has more than {_MOST_BYTES:,} bytes"
        raise ConfigError(f"{name}_FILE names {path!r}, which {reason}; it must hold the value of {name}.")
    return text


ENVIRONMENT_PRIORITY = 35  # Scrapy: spider is 30, cmdline is 40


def apply_environment(settings: BaseSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Set every known setting that has an environment variable of its name.

    Quotes around a value are taken away: docker hands them on from an environment file.
    Files that hold settings (`NAME_FILE`) count as their variables.
    An empty variable sets a text setting to nothing and leaves any other as it is.
    """
    for name in set(settings) & set(environ):
        value = environ[name]
        if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
            value = value[1:-1]
        if value or isinstance(settings[name], str):
            settings.set(name, value, priority=ENVIRONMENT_PRIORITY)
    for name, path in _files(settings, environ):
        with suppress(ConfigError):  # `check_names` says so
            settings.set(name, _content(name, path), priority=ENVIRONMENT_PRIORITY)


# --- Refuses settings that nobody reads: a mistyped name would be without effect, silently ---------------
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
_CLASSES = ("SITE_SEED_LOG_CLASSES", "SITE_SINK_CLASSES", "SITE_READER_CLASSES", "SITE_DUPEFILTER_CLASSES")


def check_names(settings: BaseSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError that names every unknown one, given in whatever way, and the nearest known.

    Also for a value of another type than the default's, and for a file with a secret that cannot be read.
    """
    check_log_settings(settings)
    for name, path in _files(settings, environ):
        _content(name, path)
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
    for name, default in vars(ours).items():  # also of what is not used now
        if isinstance(default, dict):
            options.mapping(settings, name)
        elif isinstance(default, bool | int | float) and name.startswith(_PREFIX) and name in settings:
            _check(settings, name, default)


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
    for path in _foreign_classes(settings):
        with suppress(ImportError, NameError, ValueError, TypeError):  # whoever needs the class says so
            yield from getattr(load_object(path), "setting_names", ())


def _foreign_classes(settings: BaseSettings) -> set[str]:
    paths = set(options.names(settings, "SITE_SINKS")) | {options.text(settings, "SITE_DUPEFILTER")}
    for name in _CLASSES:
        paths.update(map(str, options.mapping(settings, name).values()))
    return {path for path in paths if "." in path and not path.startswith("site_spider.")}


def _refusal(name: str) -> str:
    if name in _GONE:
        return f"{name} is gone: {_GONE[name]}."
    near = get_close_matches(name.upper(), _with_defaults() | _SCRAPYS, n=1, cutoff=_LIKENESS)
    return f"{name} is not a setting" + (f": did you mean {near[0]}?" if near else ".")


# --- scrapy settings: checks Scrapy's own settings before Scrapy reads them ------------------------------

_MAY_BE_NEGATIVE = frozenset({"DEPTH_PRIORITY", "REDIRECT_PRIORITY_ADJUST", "RETRY_PRIORITY_ADJUST"})
_LOWEST = -(10**9)


def check_scrapy_settings(settings: BaseSettings) -> None:
    """Raise ConfigError for the first number, or true or false, that is none; and for another Scrapy."""
    resources.check()
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
    for code in options.names(settings, "RETRY_HTTP_CODES"):
        options.integer({"RETRY_HTTP_CODES": code}, "RETRY_HTTP_CODES", 100, 599)


def check_log_settings(settings: BaseSettings) -> None:
    """Raise ConfigError for what Scrapy could not begin a log with."""
    _check(settings, "LOG_ENABLED", default=True)
    level, levels = settings.get("LOG_LEVEL"), logging.getLevelNamesMapping()
    if isinstance(level, str) and level not in levels:
        raise ConfigError(f"LOG_LEVEL is {level!r}, but must be one of: {', '.join(levels)}.")
    file = Path(settings.get("LOG_FILE") or os.devnull)
    if not os.access(file if os.access(file, os.F_OK) else file.parent, os.W_OK) or file.is_dir():
        raise ConfigError(f"LOG_FILE is '{file}', but that is no file that this user can write.")


def _check(settings: BaseSettings, name: str, default: float) -> None:
    if isinstance(default, bool) or name == "TELNETCONSOLE_ENABLED":  # which is 1 by default
        try:
            settings.getbool(name)
        except ValueError:
            raise ConfigError(f"{name} is {settings.get(name)!r}, but Scrapy takes only true and false.") from None
        return
    lowest = _LOWEST if name in _MAY_BE_NEGATIVE else 0
    if isinstance(default, int) and not name.endswith(("_TIMEOUT", "_DELAY", "_INTERVAL", "_SECONDS")):
        options.integer(settings, name, lowest)
    else:
        options.seconds(settings, name, lowest)


# --- spider settings: the custom_settings of a spider, over the parts of this project --------------------
# Scrapy takes a dict of custom_settings in the place of the one that was there: a spider with a pipeline of
# its own would have none that writes results, and one with a middleware of its own no retries.

_NAME = "custom_settings"
MERGED = ("ITEM_PIPELINES", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "EXTENSIONS", "DOWNLOAD_HANDLERS")


def custom_settings_of_file(path: Path) -> dict[str, Any] | None:
    """The custom_settings of a spider as its file says them, without the 0.2 s of CPU that loading it takes.

    None where only Python can tell: they are no literals, or several spiders have some.
    """
    try:
        nodes = list(ast.walk(ast.parse(path.read_bytes())))
        [value] = [
            node.value
            for node in nodes
            if isinstance(node, ast.AnnAssign | ast.Assign)
            if any(ast.unparse(target).rpartition(".")[2] == _NAME for target in _targets(node))
        ]
        found = None if value is None else ast.literal_eval(value)
    except (OSError, SyntaxError, ValueError, TypeError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _targets(node: ast.AnnAssign | ast.Assign) -> list[ast.expr]:
    return [node.target] if isinstance(node, ast.AnnAssign) else node.targets


def apply_custom_settings(settings: BaseSettings, custom: Mapping[str, Any]) -> None:
    """Set them; dicts of components add to those that are there, and None takes one out."""
    merged = {
        name: {**settings.getdict(name), **custom[name]} for name in MERGED if isinstance(custom.get(name), Mapping)
    }
    settings.setdict({**custom, **merged}, priority="spider")


# --- redaction: removes secrets of the settings from every log record ------------------------------------
# Scrapy replaces its handler more than once, so the records themselves are looked at. One without a secret
# stays as it is.

_formatter = logging.Formatter()


class RedactingFactory:
    """Makes records as another factory does, without the secrets."""

    def __init__(self, inner: Callable[..., logging.LogRecord], redaction: Redaction) -> None:
        self.inner, self._redaction = inner, redaction

    def __call__(self, *args: Any, **more: Any) -> logging.LogRecord:
        record = self.inner(*args, **more)
        self._redact_message(record)
        if record.exc_info and record.exc_info[0] is not None:
            record.exc_text = self._redaction(_formatter.formatException(record.exc_info))
        return record

    def _redact_message(self, record: logging.LogRecord) -> None:
        try:
            message = record.getMessage()
        except Exception:  # noqa: BLE001 - logging says itself what is wrong with it
            return
        redacted = self._redaction(message)
        if redacted != message:
            record.msg, record.args = redacted, None


def redact_logs(settings: BaseSettings) -> Redaction:
    """From now on no record has a secret of these settings; returns what does it, for other texts."""
    redaction = Redaction(secrets_of(settings))
    inner = logging.getLogRecordFactory()
    while isinstance(inner, RedactingFactory):
        inner = inner.inner
    logging.setLogRecordFactory(RedactingFactory(inner, redaction))
    return redaction


# --- add-on: the settings of this project in another one, as an add-on of Scrapy -------------------------
# `ADDONS = {"site_spider.Addon": 300}` brings scheduler, download handlers, middlewares, extensions and
# pipeline to the spiders that take seeds, and changes nothing for any other. What the project sets itself
# counts more: add-ons stand between Scrapy's defaults and settings.py.

ADDON_PRIORITY: Final = "addon"
ADDON_PATH: Final = "site_spider.Addon"
_LEAST: Final = SETTINGS_PRIORITIES[ADDON_PRIORITY]

_COMPONENTS: Final = ("EXTENSIONS", "DOWNLOADER_MIDDLEWARES", "SPIDER_MIDDLEWARES", "ITEM_PIPELINES")
_HANDLERS: Final = "DOWNLOAD_HANDLERS"
# What a project is called and where its code lies; and what this package's place in it says already.
_PROJECTS: Final = frozenset({"BOT_NAME", "SPIDER_MODULES", "NEWSPIDER_MODULE", "COMMANDS_MODULE"})
# Of the process: whoever made it has chosen them. `scrapy crawl` sets them before it makes one.
_OF_PROCESS: Final = frozenset({"ASYNCIO_EVENT_LOOP", "TWISTED_DNS_RESOLVER", "REACTOR_THREADPOOL_MAXSIZE"})

OUR_SETTINGS: Final[Mapping[str, Any]] = MappingProxyType(
    {name: value for name, value in vars(ours).items() if name.isupper() and name not in _PROJECTS}
)


class Addon:
    """For spiders with `takes_seeds`."""

    @classmethod
    def from_crawler(cls, crawler: Crawler) -> Self:
        if not takes_seeds(crawler):
            raise NotConfigured
        return cls()

    def update_settings(self, settings: BaseSettings) -> None:
        """As Scrapy asks: our settings below the project's, the environment above them."""
        join_settings(settings)
        apply_environment(settings)


def has_addon(settings: BaseSettings) -> bool:
    """Whether a project has the add-on."""
    return any(order is not None and load_object(name) is Addon for name, order in settings.getdict("ADDONS").items())


def has_our_settings(settings: BaseSettings) -> bool:
    """Whether our settings are there: in the project itself, or where the add-on has been at work."""
    return "SITE_SEED_TOPIC" in settings


def join_settings(settings: BaseSettings) -> None:
    """Our settings for one crawl, but for those that its process has chosen already."""
    apply_our_settings(settings, without=_OF_PROCESS if is_reactor_installed() else frozenset())


def apply_our_settings(settings: BaseSettings, without: frozenset[str] = frozenset()) -> None:
    """Our settings where the project has none of its own. Doing it twice changes nothing more."""
    for name, value in OUR_SETTINGS.items():
        if name in without:
            continue
        if name in _COMPONENTS:
            _add_components(settings, name, value)
        elif name == _HANDLERS:
            _merge(settings, name, {**value, **settings.getdict(name)})
        else:
            settings.set(name, value, priority=ADDON_PRIORITY)


def _add_components(settings: BaseSettings, name: str, added: Mapping[str, int | None]) -> None:
    theirs = settings.getdict(name)
    known = {load_object(component) for component in theirs}
    new = {path: order for path, order in added.items() if load_object(path) not in known}
    _merge(settings, name, {**new, **theirs})


def _merge(settings: BaseSettings, name: str, value: Mapping[str, Any]) -> None:
    """At the project's own priority: what may replace its value may replace this one."""
    settings.set(name, dict(value), priority=max(settings.getpriority(name) or 0, _LEAST))
