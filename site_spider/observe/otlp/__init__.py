"""OpenTelemetry: metrics, and traces of some seeds, sent over OTLP (extra `otel`).

It owns what is sent, and when. It never measures anything itself, and never waits for the receiver.
"""
