"""The HBase sink and the reader of results, through the Thrift server.

It owns the connection, the table and the layout of a row. It never decides when a record is written again:
the delivery does.
"""
