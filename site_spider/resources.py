"""Where files that are no code lie: in `resources/` of a checkout, and inside the package once installed."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_PACKAGE: Final = Path(__file__).resolve().parent
_FOLDERS: Final = (_PACKAGE / "_resources", _PACKAGE.parent / "resources")


def resource(name: str) -> Path:
    """The folder or file of this name, as `elasticsearch`; its place in the package when there is none."""
    return next((folder / name for folder in _FOLDERS if (folder / name).exists()), _FOLDERS[0] / name)
