"""Debezium's change events: envelopes and flattened rows as columns of changes."""
