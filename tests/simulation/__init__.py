"""A fleet of crawlers, its seed log, sinks and web sites in one process and in virtual time, driven by one
number.

`python -m tests.simulation --seed N` runs one storm, and the same number gives the same storm. The product
runs unchanged: its wiring, Scrapy's engine, ledger, intake, frontier, deliveries and tasks. Simulated are
what it waits for: clock, threads, log, sinks and web.
"""
