"""Rows into a Kafka topic. Start at `writer.py`."""
