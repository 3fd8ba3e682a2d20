"""Which offsets are settled, and what a strategy guarantees. Start at `ledger.py`."""
