"""Dead letters as operators handle them: read with reason and origin, and put back.

It owns the consumer group that remembers what was put back. It never writes dead letters: `results/` does.
"""
