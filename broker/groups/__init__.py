"""Consumer groups on the broker: their coordinator, and what they commit, in a log."""
