"""Metrics, status, health and logs of a worker."""
