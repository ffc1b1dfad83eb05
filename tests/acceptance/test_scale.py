"""`crawl_spider.sh --scale N`: more and fewer processes while the others go on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from site_spider.contracts.seed_log import Producer
from site_spider.service.supervisor import CONFIG, KILLED, ScaleControl, Supervision, Supervisor
from tests.acceptance.supervision import Script, finish, lives, wait_until
from tests.contracts.seed_logs import kafka_case, kafka_producer, poll_until

__all__ = ["kafka_producer"]


@pytest.fixture
def script(tmp_path: Path) -> Iterator[Script]:
    script = Script(tmp_path)
    yield script
    script.close()


def scale(script: Script, count: str, *more: str) -> tuple[int, str]:
    return finish(script.start("--scale", count, *more))


def expected(pid: int) -> int:
    """What the metrics of this process say of all."""
    pairs = Path(f"/proc/{pid}/environ").read_text().split("\0")
    [number] = [pair.partition("=")[2] for pair in pairs if pair.startswith("CRAWL_SPIDER_EXPECTED=")]
    return int(Path(f"/proc/{pid}/fd/{number}").read_text() or 0)


def test_processes_come_and_go_and_the_others_stay_and_the_watcher_ends_with_the_last(script: Script) -> None:
    process = script.start("-g", "mine", "-n", "2", "--until-done")
    first = script.wait_for_starts(2)
    script.wait_for_starts(1, "progress")
    code, complaints = scale(script, "4")  # another group is another script
    assert (code, bool(complaints)) == (1, True)
    assert scale(script, "4", "-g", "mine")[0] == 0
    all_four = script.wait_for_starts(4)
    assert scale(script, "1", "-g", "mine")[0] == 0
    wait_until(lambda: len(script.journal("stopped")) == 3)
    assert {words[2] for words in script.journal("signal")} == {"SIGUSR2"}  # they leave for good
    left = wait_until(lambda: alive if len(alive := [one for one in all_four if lives(one.pid)]) == 1 else [])
    assert left[0] in first
    wait_until(lambda: expected(left[0].pid) == 1)
    assert scale(script, "2", "-g", "mine")[0] == 0
    assert len(script.wait_for_starts(5)) == 5
    assert lives(left[0].pid)
    assert scale(script, "0", "-g", "mine")[0] == 0
    assert finish(process)[0] == 0
    assert script.survivors() == []
    assert len(script.starts()) == 5


def test_a_process_that_is_added_and_cannot_use_a_setting_ends_no_other(script: Script) -> None:
    """Its port of SITE_METRICS_ADDRESS may be taken, say; the others go on, as --help says."""
    script.plan(crawl="run exit-78 exit-78 run")
    script.edit(steady_seconds=0)
    process = script.start("-n", "1")
    first = script.wait_for_starts(1)[0]
    assert scale(script, "2")[0] == 0
    script.wait_for_starts(4)
    assert lives(first.pid)
    process.terminate()
    assert finish(process)[0] == 0


def test_a_process_that_cannot_use_a_setting_ends_none_that_waits_to_be_started_again(tmp_path: Path) -> None:
    """But if that could not use one either, nobody could."""
    plan = Supervision("crawl_spider.sh", ["scrapy"], "crawl_spider", [], 2)
    supervisor = Supervisor(plan, ScaleControl([str(tmp_path)]))
    other, ended = supervisor._slot(1), supervisor._slot(2)
    supervisor._ended(other, KILLED)
    supervisor._ended(ended, CONFIG)
    assert (ended.begins_at is not None, supervisor._is_stopping) == (True, False)
    supervisor._ended(other, CONFIG)
    assert (supervisor._is_stopping, supervisor._exit_code) == (True, CONFIG)


def test_a_process_that_waits_to_be_started_again_is_dropped(script: Script) -> None:
    """Else the script, which ends with its last process, would not end."""
    script.plan(crawl="run exit-70")
    process = script.start("-n", "1")
    script.wait_for_starts(1)
    assert scale(script, "2")[0] == 0
    script.wait_for_starts(4)  # the pauses are longer from now on
    assert scale(script, "1")[0] == 0
    assert scale(script, "0")[0] == 0
    assert finish(process)[0] == 0
    assert script.survivors() == []


@pytest.mark.servers
def test_partitions_of_a_member_that_leaves_for_good_go_to_others_before_its_session_ends(
    kafka_producer: Producer, kafka_brokers: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    with kafka_case(kafka_producer, kafka_brokers) as case:
        case.produce(8)
        leaving, staying = case.member(), case.member()
        poll_until([leaving, staying], lambda: len(leaving.owned) == len(staying.owned) == 2)
        leaving.commit_when_leaving()
        leaving.take(1)
        case.members.remove(leaving)
        leaving.consumer.close(for_good=True)
        poll_until([staying], lambda: len(staying.owned) == 4)
        committed = [p.committed for p in case.log.progress(case.topic, case.group)]
        assert any(each is not None and each.offset > 0 for each in committed)
