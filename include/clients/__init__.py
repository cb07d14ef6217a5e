"""The outside behind small functions: Kafka, tables."""
