"""What can happen to the data of a living server: an index without writes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from elasticsearch import ApiError, Elasticsearch, TransportError

from tools.chaos.acts import Stage
from tools.chaos.plan import Event

ANSWER_SECONDS = 5.0


class Blocks:
    """The indices of a run are read-only for a while. As in storm.Watched and acts.Act."""

    waits_for = ""
    name = "Elasticsearch read-only"

    def __init__(self, hosts: str, indices: Sequence[str], can_answer: Callable[[], bool]) -> None:
        self.outages: list[tuple[float, float]] = []
        self._client = Elasticsearch(hosts, request_timeout=ANSWER_SECONDS, max_retries=0)
        self._indices = ",".join(indices)
        self._can_answer = can_answer  # the server lives
        self._since: float | None = None

    @property
    def is_away(self) -> bool:
        """As in Watched."""
        return self._since is not None

    def look(self) -> None:
        """As in Watched."""

    def happen(self, event: Event, stage: Stage) -> str | None:
        """As in Act: also None when there is no index yet."""
        if self.is_away or not self._set(blocks=True):
            return None
        self._since = time.time()

        def end() -> bool:
            if not self._set(blocks=False):
                return False
            assert self._since is not None
            self.outages.append((self._since, time.time()))
            self._since = None
            stage.say("Elasticsearch takes writes again")
            return True

        stage.later(event.seconds, end)
        return f"Elasticsearch is read-only for {event.seconds:.1f} s"

    def close(self) -> None:
        """Release the client."""
        self._client.close()

    def _set(self, *, blocks: bool) -> bool:
        if not self._can_answer():
            return False
        try:
            found = self._client.indices.put_settings(
                index=self._indices,
                settings={"index.blocks.read_only": blocks},
                ignore_unavailable=True,
                allow_no_indices=False,
            )
        except (ApiError, TransportError):
            return False
        return bool(found["acknowledged"])
