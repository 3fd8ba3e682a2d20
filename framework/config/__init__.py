"""Settings from layers: defaults < TOML file < environment < flags, for any msgspec struct.

A settings struct describes itself: `schema` has the annotations, `layers` finds the values, `flags` makes
the options of a command. Nested structs are TOML sub-tables, `__` in variables and `-` in flags.
"""
