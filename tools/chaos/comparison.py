"""All that is compared at the end of a run: a check for each kind of thing."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from site_spider.contracts.seed_log import Message
from tools.chaos.checks import DeadLetterCheck, DocumentCheck, ItemCheck, RequestCheck
from tools.chaos.end_checks import TaskEndCheck, count_rows
from tools.chaos.happened import Happened
from tools.chaos.site import first_answers
from tools.chaos.staging import Stage
from tools.chaos.verdict import Check, Verdict


def compared(stage: Stage, happened: Happened) -> Verdict:
    """The verdict of all checks."""
    verdict = Verdict()
    for check in _checks(stage, happened):
        check.compare(verdict)
    if stage.ends is not None:
        verdict.rows += count_rows(stage.scene.roster, stage.ends.told())
        assert stage.commands is not None
        verdict.rows.append(("commands of tasks that failed and were run again", stage.commands.failures))
    return verdict


def _checks(stage: Stage, happened: Happened) -> Iterator[Check]:
    """The documents come first: others count by them."""
    scene, options, outlet = stage.scene, stage.scene.options, stage.outlet
    wanted, asked = scene.wanted(), scene.site.read_on()
    dead_letters = scene.deployment.dead_letters()
    cancelled = scene.roster.cancelled()
    yield DocumentCheck(
        wanted,
        outlet.results(),
        set(_asked_ids(dead_letters)),
        is_once=outlet.is_once,
        roots_come_again=options.links_come_again,
        cancelled=cancelled,
        each_cancelled=scene.deployment.settings.get("SITE_CANCELLED_RESULTS") == "true",
        deleted=scene.feed.deleted,
    )
    yield DeadLetterCheck(dead_letters)
    yield RequestCheck(wanted, asked)
    if options.items:
        yield ItemCheck(
            wanted,
            outlet.items(),
            is_once=outlet.is_once,
            roots_come_again=options.links_come_again,
            cancelled=cancelled,
            deleted=scene.feed.deleted,
        )
    if stage.ends is not None:
        yield TaskEndCheck(
            scene.roster,
            stage.ends.told(),
            first_answers(scene.site.record),
            scene.workload.pages_of,
            may_repeat=bool(happened.deaths or any(happened.counts.values())),
            one_page_a_seed=options.tree == 1,
        )


def _asked_ids(dead_letters: Iterable[Message]) -> Iterator[str]:
    """The url_ids that the seeds among them ask for."""
    for letter in dead_letters:
        try:
            yield str(json.loads(letter.value or b"")["meta"]["url_id"])
        except (ValueError, KeyError, TypeError):
            continue
