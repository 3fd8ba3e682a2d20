"""The chaos suite: breaks the whole system on purpose, and counts what its guarantees are worth."""
