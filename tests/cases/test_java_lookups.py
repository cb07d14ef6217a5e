"""PySpark's functions are looked up in the JVM once for a session."""

from __future__ import annotations

from unittest.mock import patch

from py4j import protocol
from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def lookups(spark: SparkSession) -> int:
    """Build some columns; return how many look-ups the JVM was sent meanwhile."""
    client, sent = spark.sparkContext._gateway._gateway_client, list[str]()
    send = client.send_command

    def noted(command: str, *others: object, **named: object) -> object:
        sent.append(command)
        return send(command, *others, **named)

    with patch.object(client, "send_command", noted):
        F.coalesce(F.col("a"), F.lit(1)) + F.upper("b")
    assert sent
    return sum(command.startswith(protocol.REFLECTION_COMMAND_NAME) for command in sent)


def test_a_function_that_was_used_before_is_not_looked_up_again(spark: SparkSession) -> None:
    lookups(spark)
    assert lookups(spark) == 0
    assert spark.range(3).select(F.coalesce(F.col("id"), F.lit(1))).count() == 3
