"""The model of a fleet, made of snapshots of processes; pure.

It owns sums, curves, rates and the words for why a crawl is slow. It never asks anybody: snapshots and time
are arguments.
"""
