"""What other people's clients do against our broker: one module a suite, and what they share."""
