"""The chaos suite: breaks the whole system on purpose, and counts missing and doubled records.

`python -m chaos` (or `make chaos`) runs the short scenarios, `--long` the long ones, `--list` names them.
A run starts a broker, a ClickHouse and workers as processes (`services`, `site`). Producers send records and
log the broker's acknowledgements (`producers`). A schedule of faults, determined by the seed, breaks the
system (`faults`, `proxies`, `kafka_link`); the run waits for the recovery from each. At the end the checkers
compare the acknowledged records with the sink's rows (`checkers`). They read only the recorded `history`,
which is kept beside the report, so they can be run again on it.

Two scenarios have the guarantee switched off (`unguarded`): if the checkers find no duplicates there, the
checkers are broken.
"""
