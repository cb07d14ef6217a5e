"""Headrace's streams, backfills and audits as Airflow operators and DAGs, by an Airflow connection."""
