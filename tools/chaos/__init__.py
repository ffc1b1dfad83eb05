"""Violence against a running crawl, and the count of what is lost by it. Run with `task_shell/chaos.sh`."""
