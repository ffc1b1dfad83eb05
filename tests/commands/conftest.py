"""A project of each test's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands.project import Project


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """Its data folder does not exist yet."""
    return Project(tmp_path / "data")
