"""The crawl as a process: start, wiring, stop, exit codes.

It builds every part and closes them in order. It never holds a part's logic.
"""
