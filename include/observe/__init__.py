"""One model of current state, the ledger, metrics, lineage events and the doctor. Never acts."""
