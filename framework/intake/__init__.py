"""From the consumer to the map stages, and all backpressure. Start at `intake.py`."""
