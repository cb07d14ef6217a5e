"""The columns of silver and rejected that name the Kafka record of a row; its position is partition and offset."""

POSITION = ("_partition", "_offset")
RECORD = ("_topic", *POSITION)
RANK = ("_batch_id", *POSITION)
"""The earliest of several records with one identity is the event (spark_jobs/layers/adr-0001)."""
COORDINATES = (*RECORD, "_timestamp", "_batch_id")
