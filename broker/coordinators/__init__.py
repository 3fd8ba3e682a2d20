"""The group and transaction coordinators, and the logs that store their state."""
