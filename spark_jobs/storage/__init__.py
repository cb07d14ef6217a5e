"""Delta tables, data files, leases, checkpoints and DuckDB sessions, independent of layers and datasets."""
