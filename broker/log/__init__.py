"""The log of one partition on disk. Start at `partition.py`."""
