"""Results and the offsets of their seeds in one Kafka transaction.

It owns results that wait for their seed, and the transactions under way. It never stores a result whose
seed is not complete.
"""
