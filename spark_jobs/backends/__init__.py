"""What touches rows, behind one protocol: Spark's session and its executors, or the driver's process."""
