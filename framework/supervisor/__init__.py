"""Several workers under one command: `kmr run --workers N`."""
