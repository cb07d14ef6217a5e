"""Jars, broker configuration, images; one folder per service."""
