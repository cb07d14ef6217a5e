"""Headrace's streams, plans and audits as Airflow operators and DAGs, by an Airflow connection."""
