"""Avro to Arrow columns and back. Start at `avro_format.py`."""

from ..._extras import require_extra

require_extra("avro", "Avro")
