"""Proxies for requests that fail without: the pool, its choice, and the guard before them.

It never lets a seed choose a proxy.
"""
