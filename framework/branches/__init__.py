"""Several chains of reducers at the end of one lane: one topic, several tables. Start at `branches.py`."""
