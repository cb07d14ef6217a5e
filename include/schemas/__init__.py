"""Schemas of payloads: stored with the records, read, and compared with contracts."""
