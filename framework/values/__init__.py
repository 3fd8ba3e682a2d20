"""Values and keys of records: from bytes to typed columns, and back."""
