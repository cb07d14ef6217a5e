"""`silver.weather`: an accepted observation as it is."""

from __future__ import annotations

from pyspark.sql import DataFrame


def silver(accepted: DataFrame) -> DataFrame:
    """Return the accepted observations unchanged."""
    return accepted
