"""Apply map functions: what users write, where it runs, and its results as columns."""
