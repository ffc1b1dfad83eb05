"""Requests through proxies, for pages that fail without one.

It owns the list of proxies, their health and the choice among them. It never lets a seed name a proxy.
"""
