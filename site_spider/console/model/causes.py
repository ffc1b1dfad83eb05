"""In words: why a crawl is slow, or stands."""

from __future__ import annotations

from collections.abc import Sequence

from site_spider.console.model.rules import RULES
from site_spider.console.model.scene import Cause, Scene, Weight


def causes(scene: Scene) -> list[Cause]:
    """All that slow the crawl, the worst first."""
    found = [cause for rule in RULES for cause in rule(scene)]
    return sorted(found, key=lambda cause: cause.weight)


def verdict(scene: Scene, found: Sequence[Cause]) -> str:
    """The whole in one sentence."""
    if any(cause.weight <= Weight.STOP for cause in found):
        return "The crawl is held up."
    if scene.lag == 0:
        seeds = "seed" if scene.parked == 1 else "seeds"
        parked = f" but {scene.parked:,} parked {seeds} of tasks that do not go on" if scene.parked else ""
        return f"Nothing is left to do{parked}."
    if any(cause.weight is Weight.SLOW for cause in found):
        return "Something slows or harms the crawl."
    if not scene.living:
        return "No process runs."
    return "Nothing is seen that slows the crawl."
