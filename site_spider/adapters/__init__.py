"""One server a file; client errors become ours at this edge."""
