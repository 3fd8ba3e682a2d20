"""What every long-running process of ours has: HTTP endpoints for who watches it, and logs.

Knows nothing of workers and brokers, which know nothing of each other.
"""
