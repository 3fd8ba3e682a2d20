"""Kafka's APIs: each file has handlers, their versions and their access rules."""
