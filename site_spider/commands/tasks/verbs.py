"""All verbs of `scrapy task`; a new one is a module and a line here."""

from __future__ import annotations

from collections.abc import Mapping

from site_spider.commands.tasks.control import Cancel, Delete, PauseTask, Resume
from site_spider.commands.tasks.declare import Set, Start
from site_spider.commands.tasks.end import Close, Notify, Wait
from site_spider.commands.tasks.tell import List, Show
from site_spider.commands.tasks.verb import Verb

VERBS: Mapping[str, Verb] = {
    "start": Start(),
    "list": List(),
    "show": Show(),
    "set": Set(),
    "pause": PauseTask(),
    "resume": Resume(),
    "cancel": Cancel(),
    "close": Close(),
    "wait": Wait(),
    "notify": Notify(),
    "delete": Delete(),
}
