"""The spiders of this project.

They own what is made of a response: a result, and the links to follow. They never see Kafka, offsets or
sinks.
"""
