"""Parquet files, one for each range of offsets."""
