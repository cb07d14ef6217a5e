"""Contracts against the standard; whole-table rules by Great Expectations; counts of rules."""
