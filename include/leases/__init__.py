"""Who owns tables and supervision: OS locks of the state folder, or leases in PostgreSQL (adr-0001)."""
