"""Ways between the crawlers and the servers, and an act that has one of them fail for a while."""

from __future__ import annotations

import time

from tools.chaos.acts import Stage, chosen
from tools.chaos.plan import Event
from tools.deployment.relay import Fault, Relay, kafka_relays


class Way:
    """One relay, and when it failed. As in storm.Watched."""

    waits_for = ""

    def __init__(self, name: str, relay: Relay) -> None:
        self.name = name
        self.outages: list[tuple[float, float]] = []
        self._relay = relay
        self._since = 0.0

    @property
    def is_away(self) -> bool:
        """As in Watched."""
        return self._relay.fault is not None

    def look(self) -> None:
        """As in Watched."""

    def begin(self, fault: Fault) -> None:
        """It fails from now on."""
        self._since = time.time()
        self._relay.begin(fault)

    def heal(self) -> None:
        """It is whole again."""
        self._relay.heal()
        self.outages.append((self._since, time.time()))

    def close(self) -> None:
        """Nothing passes any more."""
        self._relay.close()


class Network:
    """All ways of a run."""

    def __init__(self) -> None:
        self.ways: list[Way] = []

    def redirected(self, settings: dict[str, str]) -> dict[str, str]:
        """Settings that name the servers, for the crawlers: they go by relays."""
        found: dict[str, str] = {}
        if brokers := settings.get("SITE_KAFKA_BROKERS"):
            relays = kafka_relays(brokers)
            found["SITE_KAFKA_BROKERS"] = ",".join(relay.address for relay in relays)
            self._add("Kafka", *relays)
        if hosts := settings.get("SITE_ELASTICSEARCH_HOSTS"):
            relay = Relay(hosts.removeprefix("http://"))
            found["SITE_ELASTICSEARCH_HOSTS"] = f"http://{relay.address}"
            self._add("Elasticsearch", relay)
        if port := settings.get("SITE_HBASE_PORT"):
            relay = Relay(f"{settings['SITE_HBASE_HOST']}:{port}")
            found["SITE_HBASE_HOST"], found["SITE_HBASE_PORT"] = relay.address.split(":")
            self._add("HBase", relay)
        return found

    def close(self) -> None:
        """Nothing passes any more."""
        for way in self.ways:
            way.close()

    def _add(self, name: str, *relays: Relay) -> None:
        for relay in relays:
            relay.start()
            self.ways.append(Way(name, relay))


class Disturb:
    """A way fails, and is whole again later."""

    def __init__(self, network: Network) -> None:
        self._network = network

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act."""
        whole = [way for way in self._network.ways if not way.is_away]
        found = chosen([(way, fault) for way in whole for fault in Fault], event.victim)
        if found is None:
            return None
        way, fault = found
        way.begin(fault)

        def heal() -> bool:
            way.heal()
            stage.say(f"the way to {way.name} is whole again")
            return True

        stage.later(event.seconds, heal)
        return f"the way to {way.name} {fault.value} for {event.seconds:.1f} s"
