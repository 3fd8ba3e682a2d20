"""The framework against Apache Kafka itself: its jars from Maven Central, KRaft nodes as processes."""
