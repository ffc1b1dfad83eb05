"""Which requests a kill made to be made again: from a record, a log and the time of the kill."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tools.chaos.crew import Run
from tools.chaos.happened import Death
from tools.chaos.processes import Process
from tools.chaos.repeats import repeats

LOG = (
    "100.000 11 2026-01-01 00:00:00 [site_spider.intake.intake] INFO: Assigned: seeds/0\n"
    "105.000 12 2026-01-01 00:00:05 [site_spider.intake.intake] INFO: Assigned: seeds/0\n"
)
REQUESTS = (
    ("/once", 101.0, 101.2),
    ("/answered", 102.0, 102.5),
    ("/answered", 106.0, 106.1),
    ("/downloading", 102.9, 103.1),
    ("/downloading", 106.0, 106.1),
    ("/later", 106.5, 106.6),  # of the process that lives on
    ("/later", 107.0, 107.1),
)


def test_requests_count_for_the_kill_of_their_process(tmp_path: Path) -> None:
    log, record = tmp_path / "run.log", tmp_path / "record.jsonl"
    log.write_text(LOG)
    entries = [{"host": "h", "path": path, "time": time, "sent": sent} for path, time, sent in REQUESTS]
    record.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    run = Run("run-1", log, 1, subprocess.Popen(["true"]))
    run.process.wait()
    death = Death(run, Process(11, 0), 103.0)

    found = repeats(record, lambda _path: "seeds/0", [run], [death], [])
    assert [(toll.downloading, toll.ages) for toll in found.tolls] == [(1, [0.5])]
    assert (found.in_outages, found.others) == (0, 1)

    found = repeats(record, lambda _path: "seeds/0", [run], [death], outages=[(102.0, 104.0)])
    assert (list(found.tolls), found.in_outages, found.others) == ([], 2, 1)
