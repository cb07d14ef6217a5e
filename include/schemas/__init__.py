"""Schemas of payloads: kept with the records, read, and compared with contracts."""
