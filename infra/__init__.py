"""Jars, broker configuration, images. One folder per service."""
