"""What it costs to count the pages of a task at its end: CPU, time and memory, on the embedded log.

python -m tools.measure.page_counts 1000000
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from site_spider.adapters.local.log import LocalSeedLog
from site_spider.tasks.page_counts import CountedPage, PageTable, key_of, written

TOPIC = "seeds.tasks.pages"
IN_A_RECORD = 50
AT_ONCE = 500


def write(log: LocalSeedLog, pages: int) -> int:
    """Returns the bytes of all records."""
    rng, size, under_way = random.Random(1), 0, []
    with closing(log.producer()) as producer:
        for number in range(pages // IN_A_RECORD):
            value = written(CountedPage(rng.getrandbits(63), 5_000, True, None) for _ in range(IN_A_RECORD))
            size += len(value)
            under_way.append(producer.send(TOPIC, key_of("task", "writer", number), value))
            if len(under_way) == AT_ONCE:
                for sent in under_way:
                    sent.result()
                under_way.clear()
        for sent in under_way:
            sent.result()
    return size


def main() -> None:
    """Write, count, print."""
    pages = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as folder:
        log = LocalSeedLog(Path(folder))
        size = write(log, pages)
        cpu, began = time.process_time(), time.monotonic()
        found = PageTable(log, TOPIC).read(["task"], {}, print)
        seconds, cpu = time.monotonic() - began, time.process_time() - cpu
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        f"{found.counts['task'].pages} pages, {size / pages:.0f} bytes each: {cpu:.2f} s of CPU, "
        f"{seconds:.2f} s by the clock, {memory:.0f} MB at most"
    )


if __name__ == "__main__":
    main()
