"""What servers and producers say reaches no log, table or terminal as a command to it."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

from tests.adapters.raw_server import Asked, Said, answering, said
from tests.commands.project import Project
from tests.in_process.engine import lag

# CSI, OSC, C1, DEL, bidi override, line separator
MARK = "\x1b[31mM\x1b]0;t\x07\x9b1m\x7f\u202e\u2028M"
IN_HEAD = "\x1b[31mM\x9b1m\x7fM"  # what fits into a head


def hostile(asked: Asked) -> Said:
    """An answer with the mark in every place."""
    say = f"HTTP/1.1 {'302' if 'redirect' in asked.path else '200'} {IN_HEAD}\r\n"
    if "redirect" in asked.path:
        say += f"Location: http://h.test/{IN_HEAD}\r\n"
    say += f"X-{'Odd' if 'odd' in asked.path else 'Mark'}: {IN_HEAD}\r\nContent-Type: text/html{IN_HEAD}\r\n"
    body = f'<title>{MARK}</title><a href="/{MARK}">x</a><a href="http://{MARK}/">y</a>'.encode()
    if "broken" in asked.path:
        say = f"{IN_HEAD} no HTTP\r\n"
    return say.encode("latin-1") + b"Content-Length: %d\r\n\r\n" % len(body) + body


def messages(site: str) -> list[bytes]:
    """Good seeds with the mark wherever it may stand, and bad ones."""
    good = [
        {"url": f"{site}/page", "meta": {"url_id": "a\u202e\u2028b", "task_id": "t\u202e", "note": MARK}},
        {"url": f"{site}/redirect", "headers": {"X-Own": "\u00e4\u00a0"}, f"unknown{MARK}": MARK},
        {"url": f"{site}/broken"},
        {"url": f"{site}/odd\u202e\u2028?{'x' * 3_000}", "meta": {"NotExtract": True, MARK: {MARK: MARK}}},
    ]
    bad = [{"url": f"{site}/{MARK}"}, {"url": site, MARK: 1, "_x": MARK}, {"url": site, "callback": MARK}]
    bad += [{"url": site, "meta": {f"site_{MARK}": 1}}, {"url": site, "headers": {MARK: MARK}}]
    bad += [{"url": site, "meta": {"site_moved": {"anchor_host": MARK, "retry_reasons": [MARK]}}}]
    return [json.dumps(each, ensure_ascii=False).encode() for each in good + bad] + [MARK.encode(), b"\x1b[31m\xff"]


def assert_shown(*texts: str) -> None:
    for text in texts:
        bad = [c for c in text if not (c.isprintable() or c in "\n\t")]
        assert bad == []
    assert "\\x1b[31m" in "".join(texts) or "\\u001b[31m" in "".join(texts)


def crawled(project: Project, **variables: str) -> str:
    """What a real crawl of all that is on the topic writes on stderr, at the level DEBUG."""
    command = ["crawl", "crawl_spider", "-s", "LOG_LEVEL=DEBUG", "-s", "RETRY_TIMES=0"]
    with (
        (project.data / "stderr").open("wb") as stderr,
        project.started(*command, stderr=stderr, stdout=stderr, **variables) as running,
    ):
        until = time.monotonic() + 300
        while lag(project.log) and time.monotonic() < until:
            assert running.poll() is None
            time.sleep(0.05)
        running.send_signal(signal.SIGTERM)
        assert running.wait(300) == 0
    return (project.data / "stderr").read_text("utf-8")


def test_no_control_character_of_a_server_or_producer_is_written(project: Project) -> None:
    """A real crawl: its log, its dead letters and its results, as tables and as JSON."""
    with answering(hostile) as site:
        values = messages(site)
        project.produce("seeds", *((MARK.encode(), value) for value in values))
        log = crawled(project, SITE_ALLOW_PRIVATE_HOSTS="true")
    assert_shown(log)
    assert log.count("Dead letter from seeds/") == 8
    assert max(map(len, log.split("\n"))) < 5_000
    for name, count in (("results", 4), ("dead-letters", 8)):
        table, lines = project.scrapy(name), project.scrapy(name, "--format", "json")
        assert_shown(table.stdout, lines.stdout)
        assert (table.stderr, lines.stderr) == ("", "")
        assert sum(1 for line in lines.stdout.splitlines() if json.loads(line)) >= count
    stored = [json.loads(line) for line in project.scrapy("results", "--format", "json").stdout.splitlines()]
    assert any(document.get("meta", {}).get("note") == MARK for document in stored)  # stored as it came
    one = project.scrapy("results", "--url-id", "a\u202e\u2028b")
    assert_shown(one.stdout)


def test_the_reason_why_a_crawl_cannot_start_is_escaped(project: Project, tmp_path: Path) -> None:
    """On stderr, for people, and in the log file; the server words it."""
    refused = {"error": {"type": MARK, "reason": MARK}, "status": 400}
    refusal = said(json.dumps(refused, ensure_ascii=False).encode(), 400)
    with answering(lambda _asked: refusal) as address:
        servers = {"SITE_SINKS": "elasticsearch", "SITE_ELASTICSEARCH_HOSTS": address, "SITE_STARTUP_WAIT_SECONDS": "0"}
        ran = project.scrapy("crawl", "crawl_spider", "-s", f"LOG_FILE={tmp_path / 'log'}", **servers)
    assert ran.returncode != 0
    assert "Cannot start" in ran.stderr
    assert_shown(ran.stderr + (tmp_path / "log").read_text())
