"""HBase through its Thrift server: sink and reader.

Nothing else talks to HBase.
"""
