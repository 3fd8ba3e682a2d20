"""Dead letters: what a letter says, which letters are open, and their replay."""
