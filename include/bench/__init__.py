"""Measuring the way from topic to gold: throughput of a warm driver, and latency at a steady rate."""
