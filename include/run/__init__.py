"""The runner and the processes that it supervises."""
