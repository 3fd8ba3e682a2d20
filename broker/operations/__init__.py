"""Running a broker: metrics, health, periodic maintenance, and `doctor`."""
