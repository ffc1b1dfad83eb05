"""Certificates of sites behind a proxy count as they do without one, and no session goes through both."""

from __future__ import annotations

from typing import Any

import pytest

from tests.download.handler_trials import said_by

REFUSED = (
    "CertificateError: the certificate of localhost cannot be verified; "
    "set DOWNLOAD_VERIFY_CERTIFICATES=false to take any"
)
GOOD = ("good", "with a middle", "expired, unverified")
BAD = ("expired", "another name", "an unknown authority")  # the others: test_certificates.py


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    """A process of its own, because a reactor cannot be started twice."""
    return dict(said_by("proxied_certificates")[0])


@pytest.mark.parametrize("case", GOOD)
def test_a_good_certificate_is_taken_and_sessions_stay_apart(case: str, found: dict[str, Any]) -> None:
    """Directly, directly, through the proxy, directly: each way takes up its own."""
    assert found[case]["outcomes"] == ["<p>page"] * 4
    assert found[case]["resumed"] == [False, True, False, True]


@pytest.mark.parametrize("case", BAD)
def test_a_bad_certificate_is_refused_with_and_without_a_proxy(case: str, found: dict[str, Any]) -> None:
    assert found[case]["outcomes"] == [REFUSED] * 4
