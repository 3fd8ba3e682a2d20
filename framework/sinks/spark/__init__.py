"""Rows into tables and directories of Spark. Start at `writer.py`."""
