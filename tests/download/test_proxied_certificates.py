"""Certificates of sites behind a proxy count as they do without one, and no session goes through both."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
REFUSED = (
    "CertificateError: the certificate of localhost cannot be verified; "
    "set DOWNLOAD_VERIFY_CERTIFICATES=false to take any"
)
GOOD = ("good", "with a middle", "expired, unverified")
BAD = (
    *("without its middle", "expired", "not yet valid"),
    *("another name", "signed by itself", "an unknown authority"),
)


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """A process of its own, because a reactor cannot be started twice."""
    command = [sys.executable, "-W", "error", "-m", "tests.download.proxied_certificates"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("case", GOOD)
def test_a_good_certificate_is_taken_and_sessions_stay_apart(case: str, found: dict[str, Any]) -> None:
    """Directly, directly, through the proxy, directly: each way takes up its own."""
    assert found[case]["outcomes"] == ["<p>page"] * 4
    assert found[case]["resumed"] == [False, True, False, True]


@pytest.mark.parametrize("case", BAD)
def test_a_bad_certificate_is_refused_with_and_without_a_proxy(case: str, found: dict[str, Any]) -> None:
    assert found[case]["outcomes"] == [REFUSED] * 4
