"""Asks /healthz of the crawl in this container: exit code 0 while its event loop turns, 1 when not.

The address is SITE_METRICS_ADDRESS, of which 0.0.0.0 and [::] are asked on loopback.
"""

from __future__ import annotations

import os
import sys
from http.client import HTTPConnection, HTTPException

_SECONDS = 4.0
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}  # noqa: S104 - compared only


def main() -> int:
    """The exit code."""
    host, _, port = os.environ.get("SITE_METRICS_ADDRESS", "").strip("'\"").rpartition(":")  # docker hands quotes on
    host = host.strip("[]")
    try:
        connection = HTTPConnection(_ANY.get(host, host), int(port), timeout=_SECONDS)
        connection.request("GET", "/healthz")
        answer = connection.getresponse()
        text = answer.read(200).decode(errors="replace").strip()
    except (OSError, HTTPException, ValueError) as error:
        print(f"SITE_METRICS_ADDRESS cannot be asked: {error}")
        return 1
    print(text)
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
