"""Topics: their names, settings, partitions, and how they are kept on disk."""
