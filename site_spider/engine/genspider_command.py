"""Scrapy's `genspider` command, with a template of ours among its own."""

from __future__ import annotations

from pathlib import Path

from scrapy.commands.genspider import Command


class GenspiderCommand(Command):
    """Scrapy's own knows the templates of one folder alone."""

    def own_template(self, name: str) -> Path | None:  # noqa: ARG002 - of those that know some
        """The file of a template of this name; None for one of Scrapy's folder."""
        return None

    def _find_template(self, template: str) -> Path | None:
        return self.own_template(template) or super()._find_template(template)
