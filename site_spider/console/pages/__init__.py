"""The pages of the console as documents, which are also its JSON; pure.

It owns what each page says and in which order. It never asks anybody: all it shows is given.
"""
