"""What a run needs around it: servers, a topic, the site, the seeds. All of it ends with the `with`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # not in its stubs

from site_spider.errors import LogUnavailable
from site_spider.service import plugins as parts
from tools.chaos.crew import Crew
from tools.chaos.options import Options
from tools.chaos.pages import seed_host
from tools.chaos.plan import Kind
from tools.chaos.servers import Server, start_all
from tools.chaos.site import HOSTS, ChaosSite
from tools.chaos.verdict import Page, pages, seed_value
from tools.deployment.deployment import Deployment

FEW_PARTITIONS, MANY_PARTITIONS = 4, 8
SERVER_NAMES = {Kind.BROKER: "kafka", Kind.ELASTICSEARCH: "elasticsearch"}


@dataclass(frozen=True)
class Scene:
    """One crawl that is ready to begin."""

    site: ChaosSite
    deployment: Deployment
    crew: Crew
    servers: Mapping[Kind, Server]
    wanted: list[Page]

    @property
    def total(self) -> int:
        """How many pages there are."""
        return len(self.wanted)

    def fetched(self) -> int:
        """How many different pages were fetched so far."""
        return len(self.site.read_on())

    def lag(self) -> int | None:
        """What the group has not done; None when the log does not say."""
        try:
            return self.deployment.lag()
        except LogUnavailable:
            return None

    def partitions(self) -> int:
        """How many partitions the seed topic has."""
        return len(self.deployment.log.progress(self.deployment.topic, self.deployment.group))

    def documents(self) -> Iterator[dict[str, Any]]:
        """Every result, one after the other: there may be more than fit into memory."""
        reader = parts.reader(self.deployment.scrapy_settings)
        try:
            yield from reader.search(limit=None)
        finally:
            reader.close()


@contextmanager
def prepared(options: Options) -> Iterator[Scene]:
    """Everything but the crawlers, with all seeds produced."""
    folder = options.folder
    with ExitStack() as stack:
        servers = {} if options.embedded else _servers(stack, folder)
        site = stack.enter_context(ChaosSite(folder / "record.jsonl", HOSTS))
        settings = {"SITE_SINKS": "local" if options.embedded else "elasticsearch"}
        for server in servers.values():
            settings |= server.variables()
        deployment = Deployment(folder, settings | options.settings)
        stack.callback(deployment.close)
        if not options.embedded:
            _make_topic(
                deployment, FEW_PARTITIONS if options.processes <= FEW_PARTITIONS else MANY_PARTITIONS
            )
        crew = Crew(deployment, options.concurrency)
        stack.callback(crew.end)
        wanted = list(pages(options.seeds, options.tree, site.port))
        deployment.produce(
            [
                (seed_host(page.seed, HOSTS).encode(), seed_value(page.seed, page.url))
                for page in wanted
                if page.is_root
            ]
        )
        yield Scene(site, deployment, crew, servers, wanted)


def _servers(stack: ExitStack, folder: Path) -> dict[Kind, Server]:
    servers = {kind: Server(name, folder / f"servers-{name}") for kind, name in SERVER_NAMES.items()}
    for server in servers.values():
        stack.callback(server.end)
    start_all(servers.values())
    return servers


def _make_topic(deployment: Deployment, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": deployment.settings["SITE_KAFKA_BROKERS"]})
    admin.create_topics([NewTopic(deployment.topic, partitions, 1)])[deployment.topic].result()
