"""Real processes around a strategy, broken on purpose. Start at `storm.py`; `course.py` is what happens.

The strategy writes to its own sinks. `records.py` makes records, `course.py` sends them, `delivered.py`
counts what is in the sinks, and `verdict.py` says what became of the records. `services.py` starts, kills
and stops processes; `faults.py` has what goes wrong, and `site.py` what it goes wrong with. `make chaos` of
the checkout is the same storm, with our own strategies and more faults.
"""
