"""Arrow and DuckDB in the driver's process, prepared plans, the owner's own commits: the fast way on one machine."""
