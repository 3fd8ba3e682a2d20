"""The data directory: its lock, its logs, and when appends are written. Start at `storage.py`."""
