"""Sets the scene: servers, topics, the site, the seeds, and what can happen. All ends with the `with`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined] # not in its stubs

from tools.chaos.acts import Act, Freeze, Join, Kill, Outage, Terminate
from tools.chaos.crew import Crew
from tools.chaos.ends import EndWatch
from tools.chaos.feed import AlongFeed, Feed, Portions
from tools.chaos.memory import Memory
from tools.chaos.network import Disturb, Network
from tools.chaos.options import Options
from tools.chaos.outlet import Outlet, StoreOutlet, TopicOutlet
from tools.chaos.plan import Kind
from tools.chaos.roster import Roster
from tools.chaos.scene import Scene
from tools.chaos.servers import Server, brokers, start_all
from tools.chaos.site import ChaosSite
from tools.chaos.stores import Blocks
from tools.chaos.storm import Watched
from tools.chaos.task_commands import CancelTask, CloseTask, PauseTask, TaskCommands
from tools.chaos.topics import AddPartition, RecreateTopic
from tools.chaos.workload import HOSTS, Workload
from tools.deployment.deployment import Deployment

FEW_PARTITIONS, MANY_PARTITIONS = 4, 8


@dataclass
class Stage:
    """Everything but the crawlers."""

    scene: Scene
    outlet: Outlet
    memory: Memory
    ends: EndWatch | None = None
    commands: TaskCommands | None = None
    acts: dict[Kind, Act] = field(default_factory=dict)
    watched: list[Watched] = field(default_factory=list)
    servers: dict[Kind, list[Server]] = field(default_factory=dict)
    network: Network = field(default_factory=Network)
    blocks: Blocks | None = None
    recreation: RecreateTopic | None = None

    def lives(self, kind: Kind) -> bool:
        """Whether all servers of that kind live."""
        return not any(server.is_away for server in self.servers.get(kind, ()))

    def troubles(self) -> list[tuple[str, list[tuple[float, float]]]]:
        """What was away when, with its name."""
        found = [(server.title, server.outages) for group in self.servers.values() for server in group]
        found += [(f"way to {way.name}", way.outages) for way in self.network.ways]
        return found + [(each.name, each.outages) for each in (self.blocks, self.recreation) if each]


@contextmanager
def prepared(options: Options) -> Iterator[Stage]:
    """With the seeds of the beginning produced."""
    folder = options.folder
    with ExitStack() as stack:
        servers = _servers(stack, options)
        site = stack.enter_context(ChaosSite(folder / "record.jsonl", HOSTS))
        deployment = Deployment(folder, _settings(options, servers))
        stack.callback(deployment.close)
        network = Network()
        stack.callback(network.close)
        redirected = network.redirected(deployment.settings) if options.proxies else {}
        topics = _make_topics(options, deployment)
        crew = Crew(deployment, options.concurrency, redirected, yields_items=options.items)
        stack.callback(crew.end)
        workload = Workload(options, site.port, topics)
        roster = Roster()
        feed = Feed(workload, deployment, roster if options.tasks else None)
        stack.callback(feed.close)
        scene = Scene(options, site, deployment, topics, crew, workload, feed, roster)
        stage = Stage(
            scene,
            _outlet(options, deployment),
            Memory(lambda: [crawler for _, crawler in crew.crawlers()]),
            servers=servers,
            network=network,
        )
        _add_processes(stage)
        _add_tasks(stage, stack)
        portions = _feed(stage, stack)
        _add_topics(stage, stack, portions)
        _add_stores(stage, stack)
        yield stage


# --- servers and topics ---------------------------------------------------------------------------


def _servers(stack: ExitStack, options: Options) -> dict[Kind, list[Server]]:
    if options.embedded:
        return {}
    folder = options.folder
    servers = {Kind.BROKER: brokers(folder, options.brokers)}
    for kind, name in ((Kind.ELASTICSEARCH, "elasticsearch"), (Kind.HBASE, "hbase")):
        if options.sink == name:
            servers[kind] = [Server(name, folder / f"servers-{name}")]
    everyone = [server for group in servers.values() for server in group]
    for server in everyone:
        stack.callback(server.end)
    start_all(everyone)
    return servers


def _settings(options: Options, servers: Mapping[Kind, list[Server]]) -> dict[str, str]:
    settings = {"SITE_SINKS": options.sink}
    for group in servers.values():
        known = [server.variables() for server in group]
        settings |= {name: ",".join(each[name] for each in known) for name in known[0]}
    if options.exactly_once:
        settings["SITE_KAFKA_EXACTLY_ONCE"] = "true"
    if options.cancels:
        settings["SITE_CANCELLED_RESULTS"] = "true"  # so that each seed can be looked for
    return settings | options.settings


def _make_topics(options: Options, deployment: Deployment) -> tuple[str, ...]:
    """The topics of seeds."""
    topics = (deployment.topic, f"{deployment.topic}-bulk")[: 1 + options.topics]
    more: dict[str, str] = {}
    if options.topics:
        more["SITE_SEED_TOPICS"] = f"{topics[0]}:4,{topics[1]}:1"
    if options.sink == "kafka":
        more |= {
            "SITE_RESULTS_TOPIC": f"{deployment.topic}.results",
            "SITE_ITEMS_TOPIC": f"{deployment.topic}.items",
        }
    deployment.settings |= more
    deployment.scrapy_settings.update(more, priority="cmdline")
    if not options.embedded:
        count = FEW_PARTITIONS if options.processes <= FEW_PARTITIONS else MANY_PARTITIONS
        stored = [deployment.settings[name] for name in more if name != "SITE_SEED_TOPICS"]
        wanted = [NewTopic(topic, count, options.brokers) for topic in (*topics, *stored)]
        admin = _admin(deployment)  # to be kept until all is made
        for made in admin.create_topics(wanted).values():
            made.result()
    return topics


def _admin(deployment: Deployment) -> AdminClient:
    addresses = deployment.settings["SITE_KAFKA_BROKERS"]
    return AdminClient({"bootstrap.servers": addresses, "log_level": 0})  # outages are no news here


def _outlet(options: Options, deployment: Deployment) -> Outlet:
    if options.sink == "kafka":
        return TopicOutlet(deployment, is_once=options.exactly_once)
    return StoreOutlet(deployment)


# --- what can happen ------------------------------------------------------------------------------


def _add_processes(stage: Stage) -> None:
    crew = stage.scene.crew
    stage.acts |= {
        Kind.KILL: Kill(crew),
        Kind.TERM: Terminate(crew),
        Kind.STOP: Freeze(crew),
        Kind.JOIN: Join(crew),
        Kind.PROXY: Disturb(stage.network),
        **{kind: Outage(group) for kind, group in stage.servers.items()},
    }
    stage.watched += [stage.memory, *stage.network.ways]
    stage.watched += [server for group in stage.servers.values() for server in group]


def _add_tasks(stage: Stage, stack: ExitStack) -> None:
    scene = stage.scene
    if not scene.options.tasks:
        return
    stage.commands = TaskCommands(scene.deployment)
    stack.callback(stage.commands.stop)
    stage.ends = EndWatch(scene.deployment, scene.roster, lambda: stage.lives(Kind.BROKER))
    stack.callback(stage.ends.close)
    stage.acts |= {
        Kind.PAUSE: PauseTask(scene.roster, stage.commands),
        Kind.CANCEL: CancelTask(scene.roster, stage.commands),
        Kind.CLOSE: CloseTask(scene.roster, stage.commands),
    }
    stage.watched += [stage.commands, stage.ends]


def _feed(stage: Stage, stack: ExitStack) -> Portions | None:
    """The seeds of the beginning; what keeps those that come later, if an event asks for them."""
    scene, options = stage.scene, stage.scene.options
    if not options.soak:
        portions = Portions(scene.feed, scene.workload, options.seeds, options.added_partitions)
        portions.next()
        return portions
    commands = stage.commands
    along = AlongFeed(
        scene.feed,
        60 * options.soak,
        scene.seeds_done,
        lambda task: commands.ask("close", task) if commands else None,
    )
    along.start()
    stack.callback(along.stop)
    stage.watched.append(along)
    return None


def _add_topics(stage: Stage, stack: ExitStack, portions: Portions | None) -> None:
    if Kind.BROKER not in stage.servers:
        return
    scene, admin = stage.scene, _admin(stage.scene.deployment)
    recreation = stage.recreation = RecreateTopic(
        admin,
        scene.deployment,
        scene.topics,
        scene.options.brokers,
        scene.feed,
        portions.again if portions else lambda _seeds: None,
        lambda: stage.lives(Kind.BROKER),
    )
    stack.callback(recreation.close)
    stage.acts[Kind.TOPIC] = recreation
    stage.watched.append(recreation)
    stage.acts[Kind.PARTITIONS] = AddPartition(
        admin,
        scene.topics,
        lambda: stage.lives(Kind.BROKER) and not recreation.is_away,
        portions.next if portions else lambda: None,
    )


def _add_stores(stage: Stage, stack: ExitStack) -> None:
    deployment = stage.scene.deployment
    if Kind.ELASTICSEARCH in stage.servers:
        stage.blocks = Blocks(
            deployment.settings["SITE_ELASTICSEARCH_HOSTS"],
            [deployment.settings[name] for name in ("SITE_RESULTS_INDEX", "SITE_ITEMS_INDEX")],
            lambda: stage.lives(Kind.ELASTICSEARCH),
        )
        stack.callback(stage.blocks.close)
        stage.acts[Kind.BLOCK] = stage.blocks
        stage.watched.append(stage.blocks)
