"""Topics: created, listed, deleted and configured."""
