"""Windows in a worker: the stage that keeps them open, and the guarantees of their rows."""
