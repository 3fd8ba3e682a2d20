"""A disk that forgets, and the audit of a broker that works on it.

`disk` journals every change and every sync of the files below a directory; `power_loss` makes the possible
states after a crash at any moment. `workload` has clients of a broker on such a disk, `promises` the
responses that they had, `wire` the state that they can read; `auditor` compares the two after a crash. The
tests are in tests/broker/durability.
"""
