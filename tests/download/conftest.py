"""What several tests of downloads share."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tools.site.certificate import Signed


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Signed], None]:
    def make(root: Signed) -> None:
        file = tmp_path / "trusted.pem"
        file.write_bytes(root.pem)
        monkeypatch.setenv("SSL_CERT_FILE", str(file))
        monkeypatch.setenv("SSL_CERT_DIR", str(tmp_path / "none"))

    return make
