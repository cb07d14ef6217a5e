"""`silver.weather`: an accepted observation as it is."""

from pyspark.sql import DataFrame


def silver(accepted: DataFrame) -> DataFrame:
    """Return the accepted observations unchanged."""
    return accepted
