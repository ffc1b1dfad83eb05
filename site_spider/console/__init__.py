"""The console: what a fleet of processes does, as pages, as JSON and in a terminal.

It owns the model of a fleet (`fleet`, `process_state` and `diagnosis`, pure: made of snapshots), the pages, and
the web server, which checks who may ask. It never takes part in a crawl, and changes nothing without a form of the
session: dead letters are put back, and tasks paused, resumed, cancelled, closed or set.
"""
