"""The Kafka client of workers, on aiokafka."""
