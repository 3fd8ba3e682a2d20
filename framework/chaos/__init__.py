"""Real processes around a strategy, broken on purpose. Start at `faults.py`.

`services.py` starts, kills and stops processes; `faults.py` has what goes wrong, and `site.py` what it goes
wrong with. `make chaos` of the checkout runs our own strategies through the same, with more faults.
"""
