"""A client's side: a fast producer for the command line, tests and benchmarks."""
