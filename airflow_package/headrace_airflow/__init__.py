"""Headrace's streams, plans and audits as Airflow operators, by an Airflow connection."""

# Seconds until "database is locked". Airflow imports both by name, and adds arguments of its own to the first.
SQLITE_WAIT = {"timeout": 60.0}
SQLITE_WAIT_ASYNC = {"timeout": 60.0}
