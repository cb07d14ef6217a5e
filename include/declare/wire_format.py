"""Confluent's wire format: a zero byte, the id of the writer's schema in four bytes, then the payload."""

from __future__ import annotations

MAGIC = b"\x00"
HEADER_BYTES = 5


def framed(schema: int, payload: bytes) -> bytes:
    """Return a payload in the wire format."""
    return MAGIC + schema.to_bytes(4, "big") + payload


def schema_id(value: bytes | None) -> int | None:
    """Return the id that a value names; None when it is not in the wire format."""
    if value is None or len(value) < HEADER_BYTES or value[:1] != MAGIC:
        return None
    return int.from_bytes(value[1:HEADER_BYTES], "big")
