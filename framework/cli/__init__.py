def main() -> None:
    """Placeholder until the command line lands."""
