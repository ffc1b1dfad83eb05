"""A project of each test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.project import Project


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Its data folder does not exist yet. What runs in this process waits for nobody to tell more."""
    monkeypatch.setattr("site_spider.commands.task._SETTLE_SECONDS", 0.01)
    monkeypatch.setattr("site_spider.commands.progress._MEASURE_SECONDS", 0.01)
    return Project(tmp_path / "data")
