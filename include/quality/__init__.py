"""Contracts against the standard; rules asked of whole tables by Great Expectations; what rules have counted."""
