"""The demo: the whole pipeline on real data, in one command. Nothing imports it."""
