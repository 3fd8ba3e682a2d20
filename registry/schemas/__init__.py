"""Schemas in Avro, JSON Schema and Protobuf: parsed, and compared for compatibility."""
