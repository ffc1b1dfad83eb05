"""Grants the rights of docs/security.md on servers that `servers.sh start --secure` has started.

The commands of the page are what is granted: `kafka-acls.sh` is read into requests of the admin client, the
body of the API key is sent as it is. Topics, group and indices are those of the settings.
"""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import redis
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from elasticsearch import Elasticsearch

PAGE = Path(__file__).resolve().parents[2] / "docs" / "security.md"
NAMES = {  # on the page, and the setting that another name comes from
    "seeds": "SITE_SEED_TOPIC",
    "site_spider": "SITE_CONSUMER_GROUP",
    "site_results": "SITE_RESULTS_INDEX",
    "site_items": "SITE_ITEMS_INDEX",
    "site_stats": "SITE_STATS_INDEX",
}
_RESOURCES = {
    "--topic": ResourceType.TOPIC,
    "--group": ResourceType.GROUP,
    "--transactional-id": ResourceType.TRANSACTIONAL_ID,
}


def block(title: str) -> str:
    """The indented lines under a heading of the page, as they stand."""
    section = re.split(r"^#+ ", PAGE.read_text(), flags=re.MULTILINE)
    text = next(part for part in section if part.startswith(title + "\n"))
    return "\n".join(line[4:] for line in text.splitlines() if line.startswith("    "))


def renamed(text: str, settings: Mapping[str, str]) -> str:
    for name, setting in NAMES.items():
        if value := settings.get(setting):
            text = re.sub(rf"(?<![\w.-]){name}(?![\w])", value, text)
    return text


def acls(settings: Mapping[str, str], title: str = "Kafka", without: str = "") -> Iterator[AclBinding]:
    """What the page grants to `crawler`, but for lines that hold `without`."""
    commands = renamed(block(title), settings).replace("\\\n", " ").splitlines()
    for command in commands:
        if not command.startswith("kafka-acls.sh") or (without and without in command):
            continue
        words = shlex.split(command)
        options = [words[at : at + 2] for at, word in enumerate(words) if word.startswith("--")]
        prefixed = ["--resource-pattern-type", "prefixed"] in options
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        for resource in (pair for pair in options if pair[0] in _RESOURCES):
            for operation in (pair[1] for pair in options if pair[0] == "--operation"):
                yield AclBinding(
                    _RESOURCES[resource[0]],
                    resource[1],
                    pattern,
                    "User:crawler",
                    "*",
                    AclOperation[re.sub(r"(?<!^)(?=[A-Z])", "_", operation).upper()],
                    AclPermissionType.ALLOW,
                )


def admin(environ: Mapping[str, str] = os.environ) -> AdminClient:
    options = json.loads(environ["SITE_SERVERS_KAFKA_ADMIN_OPTIONS"])
    return AdminClient({"bootstrap.servers": environ["SITE_KAFKA_BROKERS"], **options})


def grant_kafka(client: AdminClient, bindings: list[AclBinding]) -> None:
    """Returns when the broker has them."""
    for future in client.create_acls(bindings).values():
        future.result()


def api_key(settings: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """SITE_ELASTICSEARCH_OPTIONS with a key that may do what the page says."""
    options = json.loads(environ["SITE_ELASTICSEARCH_OPTIONS"])
    body = json.loads(renamed(block("Elasticsearch"), settings).partition("-d '")[2].partition("'")[0])
    with Elasticsearch(environ["SITE_ELASTICSEARCH_HOSTS"], **options) as client:
        key = client.security.create_api_key(**body)
    return {"ca_certs": options["ca_certs"], "api_key": key["encoded"]}


def grant_redis(settings: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> None:
    with redis.Redis.from_url(environ["SITE_SERVERS_REDIS_ADMIN_URL"]) as client:
        for line in renamed(block("Redis"), settings).splitlines():
            words = [word for word in shlex.split(line) if word != "redis-cli" and word[:1] != ">"]
            with suppress(redis.ResponseError if "+bf." in line else ()):  # a server without Bloom filters
                client.execute_command(*words)
