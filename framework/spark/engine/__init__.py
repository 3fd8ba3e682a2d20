"""A strategy as a query of Structured Streaming. Start at `engine.py`; a task's work is `task.py`."""
