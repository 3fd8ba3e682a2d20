"""Record batches as a broker sends them -> Arrow columns."""
