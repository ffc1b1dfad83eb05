"""Hostile servers and pages against the real crawler, with bounds on its event loop, memory and exit code."""
