"""The spark-submit targets: one process each."""
