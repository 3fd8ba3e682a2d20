"""`kmr broker`: run the bundled broker, and work with any Kafka broker: topics, records, groups."""

from broker.cli.root import app

__all__ = ["app"]
