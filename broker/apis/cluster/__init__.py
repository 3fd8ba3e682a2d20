"""The cluster: what it serves, who may do what, and how much."""
