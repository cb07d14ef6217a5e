"""The columns of a Kafka record: its content in bronze; its coordinates in silver and rejected.

Its position is partition and offset.
"""

CONTENT = ("key", "value", "timestamp", "timestamp_type", "headers")
"""What a record of Kafka consists of besides its coordinates, as columns of bronze."""
POSITION = ("_partition", "_offset")
RECORD = ("_topic", *POSITION)
RANK = ("_batch_id", *POSITION)
"""The earliest of several records with one identity is the event (spark_jobs/layers/adr-0001)."""
COORDINATES = (*RECORD, "_timestamp", "_batch_id")
