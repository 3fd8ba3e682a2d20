"""What the bundled broker and Apache Kafka answer to the same requests about settings, field by field."""
