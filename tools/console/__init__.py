"""A real crawl with a console beside it, for pictures and tests."""
