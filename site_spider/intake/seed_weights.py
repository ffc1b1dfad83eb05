"""Estimates the memory of seeds in flight."""

from __future__ import annotations

from site_spider.contracts.seed_log import Message
from site_spider.errors import SeedError
from site_spider.intake.load import Load
from site_spider.ledger.completion import SeedListener
from site_spider.ledger.ledger import Entry
from site_spider.seed.seed import Seed, seed_bytes


class SeedWeights(SeedListener):
    """Adds them to the load."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._sizes: dict[Entry, int] = {}  # bytes

    def arrived(self, entry: Entry, message: Message, seed: Seed | SeedError) -> None:
        """As in SeedListener."""
        self._sizes[entry] = size_bytes = seed_bytes(message, seed)
        self._load.add_seed(size_bytes)

    def ended(self, entry: Entry) -> None:
        """As in SeedListener."""
        self._load.remove_seed(self._sizes.pop(entry))

    def fenced(self, entry: Entry) -> None:
        """As in SeedListener."""
        self.ended(entry)
