"""The Kafka source: `spark.readStream.format("kmr-kafka")`. Start at `data_source.py`."""
