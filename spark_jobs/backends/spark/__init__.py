"""Plain PySpark and delta-spark: executors do all row work, the driver reads and commits metadata only."""
