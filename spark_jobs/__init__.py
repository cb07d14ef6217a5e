"""The data plane: plain Spark that says what a table holds and how it is written. No Airflow."""
