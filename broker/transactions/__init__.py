"""Transactions: records of several partitions, and offsets, that become visible together or not at all.

`types` and `lifecycle` are the pure state machine, `records` and `store` keep it on disk, `markers`
tells partitions how a transaction ended, and `coordinator` puts them together.
"""
