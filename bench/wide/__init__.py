"""Topics of many partitions with a few records each: `python -m bench.wide`."""
