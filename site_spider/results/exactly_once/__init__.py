"""Results and offsets in one Kafka transaction.

It owns the results that are held until their seed is complete.
"""
