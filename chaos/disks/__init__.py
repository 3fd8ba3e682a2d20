"""A disk that forgets, and how a broker is checked that works on it.

`disk` takes down every change to the files below a directory, and who has synced what; `power_loss` says
what a crash at any moment leaves of them. `workload` are clients of a broker on such a disk, `promises` what
they were told, `wire` what they see, and `auditor` compares the two after a crash. The tests that do so
are in tests/broker/durability.
"""
