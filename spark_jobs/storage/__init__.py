"""Delta tables, data files, checkpoints and DuckDB sessions, independent of layers and datasets."""
