"""`silver.posts`: an accepted post with its words and hashtags."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def silver(accepted: DataFrame) -> DataFrame:
    """Add `words` and `tags` (arrays of strings): the parts of the text without and with `#`."""
    parts = F.split("text", " ")
    words = F.filter(parts, lambda part: (part != "") & ~part.startswith("#"))
    return accepted.withColumn("words", words).withColumn("tags", F.filter(parts, lambda part: part.startswith("#")))
