"""`scrapy` with one loopback address that counts as public, so that the guard against private ones can be on.

Run as: python -m tests.acceptance.crawl_of_proxies ADDRESS SCRAPY-ARGUMENTS...
"""

from __future__ import annotations

import sys

from scrapy.cmdline import execute

from site_spider.download import connection_pool, names, proxies


def main(address: str, arguments: list[str]) -> None:
    for module in (names, proxies, connection_pool):
        module.is_public = lambda found: found == address  # type: ignore[attr-defined]
    sys.argv = ["scrapy", *arguments]  # the settings look there for the command
    execute()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
