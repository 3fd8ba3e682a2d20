"""Windows beside Quix Streams: `python -m bench.windows`."""
