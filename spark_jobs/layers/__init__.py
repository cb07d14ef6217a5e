"""Writes the layers: bronze, silver with rejected, gold."""
