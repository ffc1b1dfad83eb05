"""Which seeds are in flight, what each still waits for, and which offsets are safe to commit.

It owns holds, epochs, positions and the commit metadata. It never reads a topic or downloads.
"""
