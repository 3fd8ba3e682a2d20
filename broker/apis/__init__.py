"""Kafka's APIs, in rooms: each file has the handlers of a few APIs, their versions and their access rules."""
