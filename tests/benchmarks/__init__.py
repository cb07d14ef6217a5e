"""Benchmarks: throughput and latency from topic to gold, rebuilds, promotion and rollback."""
