"""Users and their authentication by SASL, and access rules."""
