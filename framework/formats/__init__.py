"""Record batches of Kafka to Arrow columns. Start at `batch_decoder.py`."""
