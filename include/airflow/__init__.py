"""Airflow's operators, triggers and links. No logic of their own."""
