"""Rows into a Kafka topic."""
