"""Writes the parts of the documents that follow from the source."""
