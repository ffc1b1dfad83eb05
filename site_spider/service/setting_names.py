"""Refuses settings that nobody reads: a mistyped name would be without effect, silently.

Known are the names with a default, here or in the settings file of the project at hand, and those that a
class of somebody else's declares in `setting_names`. Other names than ours are refused when they are nearly
one of Scrapy's, and have such a value: other parts of a project have settings of their own.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from difflib import get_close_matches
from functools import cache
from importlib import import_module

from scrapy.settings import BaseSettings, default_settings
from scrapy.utils.misc import load_object

from site_spider import options
from site_spider import settings as ours
from site_spider.errors import ConfigError
from site_spider.service import secret_files

_PREFIX = "SITE_"
_OF_SERVERS = "SITE_SERVERS_"  # task_shell/servers.sh reads these
_FILE = "SCRAPY_SETTINGS_MODULE"  # the variable that Scrapy keeps the project's settings file in
_LIKENESS = 0.6  # of two names, from 0 to 1
_NEARLY = 0.9  # the same: a letter that lacks or is too many
_LONG = 12  # characters: a shorter variable of the environment may be another program's
_SCRAPYS = frozenset(name for name in dir(default_settings) if name.isupper())
_UNUSUAL = frozenset({"CONCURRENT_REQUESTS_PER_IP"})  # Scrapy reads them, and has no default
_GONE = {"SITE_TRACE_EVERY": "nothing is sent over OTLP: let a collector scrape SITE_METRICS_ADDRESS"}
_CLASSES = ("SITE_SEED_LOG_CLASSES", "SITE_SINK_CLASSES", "SITE_READER_CLASSES", "SITE_DUPEFILTER_CLASSES")


def check_names(settings: BaseSettings, environ: Mapping[str, str] = os.environ) -> None:
    """Raise ConfigError that names every unknown one, given in whatever way, and the nearest known.

    Also for a file with a secret that cannot be read.
    """
    secret_files.check(settings, environ)
    given = {name for name in environ if not name.startswith(_OF_SERVERS)} | set(settings)
    unknown = {name for name in given if name.startswith(_PREFIX)} - _with_defaults() - secret_files.FILES
    if unknown:
        unknown -= set(_declared(settings))
    if unknown:
        raise ConfigError(" ".join(map(_refusal, sorted(unknown))) + " docs/settings.md has all of them.")
    if misspelt := dict(_misspelt(settings, environ)):
        raise ConfigError(
            " ".join(f"{name} is not a setting: did you mean {near}?" for name, near in misspelt.items())
        )
    for name, default in vars(ours).items():
        if isinstance(default, dict):
            options.mapping(settings, name)  # also of what is not used now


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
    known = [*_with_defaults(), *(other for other in dir(default_settings) if other.isupper())]
    near = get_close_matches(name.upper(), known, n=1, cutoff=_LIKENESS)
    return f"{name} is not a setting" + (f": did you mean {near[0]}?" if near else ".")
