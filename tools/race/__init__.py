"""Crawlers that do the same work, measured side by side: what `task_shell/bench.sh` runs."""
