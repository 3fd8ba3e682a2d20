"""Kafka's wire protocol: bytes to messages and back."""
