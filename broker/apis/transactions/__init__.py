"""Transactions: begun, ended, listed, and aborted by an operator."""
