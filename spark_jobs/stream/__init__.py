"""What the owner of a dataset's tables does: ingest, refine, requests, upkeep."""
