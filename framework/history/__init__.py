"""Backfill: read the history of topics beside a live group, from the same cut."""
