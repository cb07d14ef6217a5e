"""The state folder: typed files that processes exchange, locks, and run files. Depends on no process."""
