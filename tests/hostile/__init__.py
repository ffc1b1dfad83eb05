"""Hostile servers, pages and messages against the real crawler, with bounds on its event loop, memory and exit code."""
