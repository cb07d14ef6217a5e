"""`silver.meter`: an accepted reading as it is; out of order while a file `broken` lies beside this one."""

from __future__ import annotations

from pathlib import Path

from pyspark.sql import DataFrame


def silver(accepted: DataFrame) -> DataFrame:
    """Return the accepted readings unchanged."""
    if (Path(__file__).parent / "broken").exists():
        raise RuntimeError("the transformation is out of order")
    return accepted
