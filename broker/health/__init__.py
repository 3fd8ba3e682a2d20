"""Whether a broker lives and is ready, and the HTTP server that tells it and the metrics."""
