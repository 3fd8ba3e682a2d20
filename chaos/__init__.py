"""The chaos suite: breaks the whole system on purpose, and counts what its guarantees are worth.

`python -m chaos` (or `make chaos`) runs the short scenarios, `--long` the long ones, `--list` names them.
A run sets up a broker, a ClickHouse and workers as processes of their own (`services`, `site`), lets
producers send records and take down what the broker acknowledged (`producers`), lets a schedule of faults
strike that only the seed decides (`faults`, `proxies`, `kafka_link`), waits for the recovery from each, and
at last compares what was acknowledged with what is in the sink (`checkers`). Checkers see nothing but the
recorded `history`, which is kept beside the report: they can be run again on it.

Two scenarios have the guarantee switched off (`unguarded`): there the checkers must find what is doubled,
or they are worth nothing.
"""
