"""Protobuf to Arrow columns and back. Start at `protobuf_format.py`."""

from ..._extras import require_extra

require_extra("protobuf", "Protobuf")
