"""The console: what a fleet of processes does, as pages, as JSON and in a terminal.

It owns the model of a fleet, the pages and the web server. It never takes part in a crawl; it changes
what an operator orders: dead letters are put back, and tasks paused, resumed, cancelled, closed or set.
"""
