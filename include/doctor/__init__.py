"""Checks whether this machine can run Headrace: one plain function per check."""
