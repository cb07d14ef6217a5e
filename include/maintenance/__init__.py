"""Upkeep of tables and logs."""
