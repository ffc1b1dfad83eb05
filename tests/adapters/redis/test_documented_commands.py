"""The commands for Redis that the documents name, run by a shell as they stand there."""

from __future__ import annotations

import re
import subprocess
import uuid
from collections.abc import Iterator
from hashlib import sha1
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from redis import Redis

from tests.acceptance.rights import block
from tests.reader import ROOT

pytestmark = pytest.mark.servers


@pytest.fixture
def redis(redis_url: str) -> Iterator[Redis]:
    with Redis.from_url(redis_url) as client:
        yield client


def run(command: str, redis_url: str, folder: Path) -> None:
    port = urlsplit(redis_url).port
    line = command.replace("redis-cli", f"redis-cli -e -p {port}")
    subprocess.run(["sh", "-ec", line], cwd=folder, check=True, timeout=300)


def test_the_user_of_a_crawler_has_a_password(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    name = f"crawler-{uuid.uuid4().hex}"
    commands = [line for line in block("Redis").splitlines() if "+bf." not in line]
    try:
        run("\n".join(commands).replace("SETUSER crawler", f"SETUSER {name}"), redis_url, tmp_path)
        port = urlsplit(redis_url).port or 6379
        with Redis(port=port, username=name, password="PASSWORD") as client:
            assert client.ping()
            client.set("site_spider:x", 1, ex=1)
    finally:
        redis.acl_deluser(name)
    assert list(tmp_path.iterdir()) == []


def test_all_marks_of_a_group_are_removed(redis: Redis, redis_url: str, tmp_path: Path) -> None:
    """Their names end with any bytes. (SCAN may name a key twice, hence the set.)"""
    group = f"group-{uuid.uuid4().hex}"
    text = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    (command,) = re.findall(r"^    (redis-cli .*:seen:.*)$", text, re.MULTILINE)
    foreign = f"site_spider:{group}-other:seen:x"
    redis.set(foreign, 1, ex=60)
    for number in range(300):
        redis.set(f"site_spider:{group}:seen:".encode() + sha1(b"%d" % number).digest(), 1, ex=60)
    run(command.replace("site_spider:site_spider", f"site_spider:{group}"), redis_url, tmp_path)
    assert {*redis.scan_iter(match=f"site_spider:{group}*")} == {foreign.encode()}
