"""One message of the seed topic: what a valid one is, and how it is read, written and signed.

It owns the parser and the checks of every field. It never executes or imports anything that a message
names.
"""
