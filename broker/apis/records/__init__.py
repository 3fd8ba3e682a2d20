"""Records: produced, fetched, deleted, and their offsets found."""
