"""Times a crawl in which one slow host has 90 % of the seeds, and 100 fast hosts the rest.

    python -m tools.measure.slow_host [--seeds N] [--limit SECONDS] [--in-flight N,N,...]

The slow host answers after a second, each host gets 8 requests at a time, 64 in all. Measured is the
time from the first answer to that of the last fast page, as the site saw it: with Scrapy's own scheduler
and downloader (a spider whose start() yields the same URLs in the same order), with ours over the embedded
seed log for each limit of seeds in flight, and with ours when there are no slow seeds at all.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from site_spider.adapters.local.log import LocalSeedLog
from tools.site.exchange import host_name
from tools.site.handle import ROOT, Site

FAST_HOSTS = 100
SLOW_SHARE = 0.9
SLOW_MS = 1000
SCRAPY = Path(sys.executable).parent / "scrapy"
SAME_SETTINGS = {
    "CONCURRENT_REQUESTS": "64",
    "CONCURRENT_REQUESTS_PER_DOMAIN": "8",
    "CONCURRENT_ITEMS": "4",
    "DOWNLOAD_DELAY": "0",
    "ASYNCIO_EVENT_LOOP": "uvloop.Loop",
    "ROBOTSTXT_OBEY": "false",
    "COOKIES_ENABLED": "true",
    "TELNETCONSOLE_ENABLED": "false",
    "REMOTE_CONTROL_ENABLED": "false",
    "LOG_LEVEL": "INFO",
}
STOCK_SPIDER = """
import sys
from pathlib import Path
from scrapy import Request, Spider

class Stock(Spider):
    name = "stock"

    async def start(self):
        for url in Path({urls!r}).read_text().split():
            yield Request(url, dont_filter=True)

    def parse(self, response):
        pass
"""


def urls_of(site: Site, count: int, slow_share: float) -> list[str]:
    """Slow and fast pages, mixed."""
    slow = int(count * slow_share)
    urls = [site.url(f"/slow/{SLOW_MS}/{number}", 0) for number in range(slow)]
    urls += [site.url(f"/page/{number}", 1 + number % FAST_HOSTS) for number in range(count - slow)]
    random.Random(1).shuffle(urls)
    return urls


def as_arguments(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("-s", f"{name}={value}")]


def start_stock(folder: Path, urls: Sequence[str]) -> subprocess.Popen[bytes]:
    (folder / "urls.txt").write_text("\n".join(urls))
    spider = folder / "stock_spider.py"
    spider.write_text(STOCK_SPIDER.format(urls=str(folder / "urls.txt")))
    with (folder / "stock.log").open("wb") as log:
        command = [SCRAPY, "runspider", str(spider), *as_arguments(SAME_SETTINGS)]
        return subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)


def start_ours(folder: Path, urls: Sequence[str], in_flight: int) -> subprocess.Popen[bytes]:
    producer = LocalSeedLog(folder / "data").producer()
    for url in urls:
        host = url.split("/")[2].rpartition(":")[0]
        producer.send("seeds", host.encode(), json.dumps({"url": url}).encode())
    assert producer.flush(120) == 0
    producer.close()
    settings = SAME_SETTINGS | {
        "SITE_DATA_DIR": str(folder / "data"),
        "SITE_ALLOW_PRIVATE_HOSTS": "true",
        "SITE_MAX_SEEDS_IN_FLIGHT": str(in_flight),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SITE_")}
    with (folder / "ours.log").open("wb") as log:
        command = [SCRAPY, "crawl", "crawl_spider", *as_arguments(settings)]
        return subprocess.Popen(command, cwd=ROOT, env=kept, stdout=log, stderr=log)


def fast_times(site: Site) -> tuple[float, list[float]]:
    """When the first page was asked for, and when each fast one was answered."""
    slow, entries = host_name(0), site.entries()
    first = min((entry.time for entry in entries), default=0.0)
    return first, sorted(entry.sent for entry in entries if entry.host != slow)


def run(name: str, limit_seconds: float, seeds: int, in_flight: int, slow_share: float) -> str:
    with tempfile.TemporaryDirectory() as place, Site(Path(place) / "record.jsonl", FAST_HOSTS + 1) as site:
        folder, urls = Path(place), urls_of(site, seeds, slow_share)
        wanted = sum("/page/" in url for url in urls)
        stock = name.startswith("stock")
        crawler = start_stock(folder, urls) if stock else start_ours(folder, urls, in_flight)
        deadline = time.monotonic() + limit_seconds
        try:
            while len(fast_times(site)[1]) < wanted and time.monotonic() < deadline:
                time.sleep(0.5)
        finally:
            crawler.kill()
            crawler.wait()
        time.sleep(0.5)
        first, fast = fast_times(site)
        assert fast, (folder / ("stock.log" if stock else "ours.log")).read_text()[-2000:]
        seconds = fast[-1] - first
        all_of_them = f"{seconds:.1f} s" if len(fast) == wanted else f"not within {limit_seconds:.0f} s"
        return f"| {name} | {len(fast):,} of {wanted:,} | {all_of_them} | {len(fast) / seconds:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20_000)
    parser.add_argument("--limit", type=float, default=120)
    parser.add_argument("--in-flight", default="1000,30000")
    options = parser.parse_args()
    print("| crawl | fast pages | all of them after | fast pages a second |\n|---|---|---|---|", flush=True)
    print(run("stock Scrapy", options.limit, options.seeds, 0, SLOW_SHARE), flush=True)
    for in_flight in map(int, options.in_flight.split(",")):
        name = f"ours, SITE_MAX_SEEDS_IN_FLIGHT={in_flight}"
        print(run(name, options.limit, options.seeds, in_flight, SLOW_SHARE), flush=True)
    fast_only = round(options.seeds * (1 - SLOW_SHARE))
    print(run("ours, fast seeds alone", options.limit, fast_only, 1_000, 0), flush=True)


if __name__ == "__main__":
    main()
