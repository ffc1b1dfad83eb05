"""The WARC sink: exchanges with sites as they were on the wire, in files of web archives.

It owns these files, their indices and the layout of a record. It never decides when a record is written
again: the delivery does.
"""
