"""The broker's speed, beside Apache Kafka's where that can be had: `python -m bench.broker`."""
