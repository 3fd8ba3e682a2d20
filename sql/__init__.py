"""The SQL checks, as files that any client can run; `kmr check` runs them too."""
