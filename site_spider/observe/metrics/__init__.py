"""Metrics for Prometheus: their names, their values out of snapshots, and the exporter of a process.

It owns the names and labels of metrics. It never measures anything itself, and changes nothing in the crawl.
"""
