"""Archives of topics: Parquet files with records that a topic may not have any more."""
