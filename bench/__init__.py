"""Side-by-side benchmarks. Each figure comes from a process of its own; what counts are the ratios."""
