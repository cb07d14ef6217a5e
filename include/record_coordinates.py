"""Columns of silver and rejected that name the Kafka record of a row."""

PLACE = ("_partition", "_offset")
RECORD = ("_topic", *PLACE)
RANK = ("_batch_id", *PLACE)
"""The earliest of several records with one identity is the event (spark_jobs/layers/adr-0001)."""
COORDINATES = (*RECORD, "_timestamp", "_batch_id")
