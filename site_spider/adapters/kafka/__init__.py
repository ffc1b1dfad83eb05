"""Kafka: seed log, sink, transactions.

Nothing else talks to Kafka.
"""
