"""Both sides against their counterparts.

`python -m interop`: real clients' own test suites against our broker (`suites`).
`python -m interop.kafka`: the framework, and the bundled broker's answers (`answers`), against Apache Kafka
itself, its jars from Maven Central, its nodes as processes.
"""
