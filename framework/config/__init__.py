"""Settings from layers: defaults < TOML file < environment < flags, for any msgspec struct.

A settings struct describes itself: `Annotated` types with `msgspec.Meta` carry what is allowed, the
description, and in `extra` the unit (`bytes`, `seconds`: values may then be written `16MiB`, `500ms`),
the flag's name where it differs, and whether the value is secret. Nested structs are TOML sub-tables,
`__` in variables and `-` in flags.
"""
