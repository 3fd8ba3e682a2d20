"""`kmr doctor`: check everything that a worker would meet, without being one. Start at `examination.py`."""
