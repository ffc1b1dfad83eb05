"""One message of the seed topic: what a valid one is, and how it is read and written.

It owns the parser and the checks of every field. It never executes or imports what a message names.
"""
