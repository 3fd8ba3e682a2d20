"""A schema registry that speaks Confluent's REST API and keeps its schemas in the topic `_schemas`."""
