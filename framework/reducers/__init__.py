"""The contract of reducers, their flushes, and the reducers without a sink."""
