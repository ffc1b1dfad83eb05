"""The crawl as a process: settings, start, wiring, stop, exit codes.

It owns the order in which parts are built, opened and closed. It never decides anything about a single
seed.
"""
