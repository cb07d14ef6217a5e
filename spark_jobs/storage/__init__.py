"""Delta tables, data files, leases, checkpoints and DuckDB sessions: knows no layer and no dataset."""
