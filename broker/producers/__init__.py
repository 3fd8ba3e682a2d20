"""Producers with an id, as a partition sees them: sequences, duplicates, transactions (KIP-98)."""
