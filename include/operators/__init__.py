"""Airflow operators, triggers and forms: thin adapters over planning, supervision and audit."""
