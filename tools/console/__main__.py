"""Takes the pictures of the console in docs/, of a real crawl.

    python -m tools.console [SECONDS]

Two processes crawl a site on loopback for so many seconds (default: 150), in which one host is slow and some
pages fail. Needs Debian's chromium.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from tools.console.browser import chromium
from tools.console.scene import ROOT, SCRIPT, SLOW_HOST, Scene, scene

PICTURES = ROOT / "docs" / "console"
PAGES = {"overview": "", "hosts": "hosts", "failures": "failures"}
_SECONDS = 150.0
_SIZE = {"width": 1200, "height": 860}


def prepare(made: Scene) -> None:
    """Seeds of three tasks, more than can be crawled in the time."""
    quick = tuple(f"127.0.0.{number}" for number in range(2, 9))
    made.produce(9, "/fail/", "shop", quick)
    made.produce(9_000, "/article/", "news", quick)
    made.produce(3_000, "/item/", "shop", quick)
    made.produce(3_000, "/archive/", "archive", (SLOW_HOST,))
    producer = made.log.producer()
    for value in (b'{"url": "ftp://h.test/"}', f'{{"url": "{SCRIPT}"}}'.encode(), b"{", b'{"meta": {}}'):
        producer.send("seeds", None, value).result(30)
    producer.close()


def main() -> None:
    """Crawl, wait, take the pictures."""
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else _SECONDS
    PICTURES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="console-") as folder, scene(Path(folder)) as made:
        prepare(made)
        address = made.console()
        for _ in range(2):
            made.crawl(CONCURRENT_REQUESTS_PER_DOMAIN="2")
        time.sleep(seconds)
        with chromium() as browser:
            page = browser.new_page(viewport=_SIZE, color_scheme="light")
            for name, path in PAGES.items():
                page.goto(address + path)
                page.wait_for_timeout(1_500)  # the curves are drawn
                page.screenshot(path=PICTURES / f"{name}.png")
                print(PICTURES / f"{name}.png")


if __name__ == "__main__":
    main()
