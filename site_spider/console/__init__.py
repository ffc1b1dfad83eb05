"""The console: what a fleet of processes does, as pages, as JSON and in a terminal.

It owns the model of a fleet, the pages and the web server. It never takes part in a crawl; its one change is
a replay of dead letters that an operator has chosen.
"""
