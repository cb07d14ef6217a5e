"""The ledger: what was committed, batch by batch; a database index over the Delta commits, which are the truth."""
