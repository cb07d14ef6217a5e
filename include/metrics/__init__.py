"""Figures for Prometheus, and the conditions that people are alerted of, with Prometheus and without."""
