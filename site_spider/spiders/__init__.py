"""The spiders: parse only."""
