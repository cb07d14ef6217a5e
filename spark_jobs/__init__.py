"""The data plane: plain Spark that computes the rows of a table and writes them. No Airflow."""
