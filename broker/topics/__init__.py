"""Topics: names, settings, partitions, and their files. Start at `topics.py`."""
