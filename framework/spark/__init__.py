"""The Spark engine: a Kafka source in Python, and strategies on Structured Streaming.

Nothing here imports PySpark, or starts a JVM, before it is asked to: `import framework` works without.
"""
