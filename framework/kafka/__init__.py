"""The Kafka client of workers: membership, offsets and whole raw batches, on aiokafka."""
