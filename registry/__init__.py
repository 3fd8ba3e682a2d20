"""A schema registry for any Kafka cluster: Confluent's REST API over the topic `_schemas`."""
