"""What a strategy remembers from one flush to the next. It follows from the log, so the log is its store."""
