"""Columns of silver and rejected that name the Kafka record of a row."""

PLACE = ("_partition", "_offset")
RANK = ("_batch_id", *PLACE)
"""The earliest of several records with one identity is the event (adr-0001)."""
COORDINATES = ("_topic", *PLACE, "_timestamp", "_batch_id")
