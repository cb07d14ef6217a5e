"""Starts, restarts and stops the broker, the drivers, the runner and Airflow."""
