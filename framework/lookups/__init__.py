"""Tables that maps look things up in: compacted topics, and the results of queries."""
