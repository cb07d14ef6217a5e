"""Delta tables, commits, checkpoints, identities and files; knows no layer."""
