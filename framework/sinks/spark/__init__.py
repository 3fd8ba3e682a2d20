"""Rows into tables and directories of Spark."""
