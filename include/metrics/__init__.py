"""Metrics for Prometheus, and alert conditions, evaluated with or without Prometheus."""
