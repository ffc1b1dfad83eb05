"""Kafka-fed crawler service with tiered priority queues."""
