"""Which seeds are in flight, what each of them still waits for, and which offsets are safe to commit.

It owns holds, epochs, positions, commit metadata and the life-cycle of a seed. It never reads a topic,
downloads or writes a result.
"""
