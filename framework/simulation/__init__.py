"""Runs a strategy through schedules of failures, in one thread and virtual time. Start at `simulate.py`.

Real: the worker, its stages, ledgers and commits, the user's map and reducers. Models: the consumer group and
its brokers (`group.py`), the sinks below the writers (`sinks.py`, `clickhouse.py`), the network (`world.py`).
"""
