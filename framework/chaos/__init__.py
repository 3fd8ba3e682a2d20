"""Real processes around a strategy, broken on purpose. Start at `storm.py`, the course of a run.

`redirect.py` makes the strategy's sinks ours; `records.py` and `load.py` send records, and `verdict.py` says
what became of them. `services.py` starts, kills and stops processes; `faults.py` has what goes wrong, and
`site.py` what it goes wrong with. `make chaos` of the checkout runs our own strategies through the same, with
more faults.
"""
