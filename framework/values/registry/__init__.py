"""Schema registries: their client, and the prefix of values whose schema they keep."""
