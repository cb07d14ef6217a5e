"""Columns of silver and rejected that name the Kafka record of a row."""

PLACE = ("_partition", "_offset")
COORDINATES = ("_topic", *PLACE, "_timestamp", "_batch_id")
