"""Processes: what is wanted, what is seen to run, and how to get from one to the other."""
