"""A fleet of crawlers, its seed log, sinks and web sites in one process and in virtual time, driven by one
number.

`python -m tests.simulation --seed N` runs one storm, each time the same. The product runs unchanged: wiring,
Scrapy's engine, ledger, intake, frontier, deliveries, tasks. Simulated are clock, threads, log, sinks and web.
"""
